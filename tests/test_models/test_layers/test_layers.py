import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from mmlinattn.models.layers import (
    RALA,
    MixFFN,
    SoftmaxAttention,
    TokenLayout,
    map_to_tokens,
    softmax_attention,
    tokens_to_map,
)
from mmlinattn.models.layers.token_layout import unpadded_map

from .conftest import assert_near_exact


def test_softmax_attention_equals_the_formula():
    q, k, v = torch.randn(3, 2, 2, 7, 8, dtype=torch.float64)
    mask = torch.zeros(2, 7, dtype=torch.bool)
    mask[1, 3:] = True
    logits = q @ k.mT / 8**0.5
    logits[1, ..., 3:] = -torch.inf
    torch.testing.assert_close(softmax_attention(q, k, v, mask), logits.softmax(-1) @ v)


def test_softmax_attention_without_any_key_is_zero():
    q, k, v = (x.requires_grad_() for x in torch.randn(3, 2, 1, 4, 8).unbind())
    mask = torch.tensor([[True] * 4, [False] * 4])
    out = softmax_attention(q, k, v, mask)
    out.sum().backward()
    assert (out[0] == 0).all() and torch.isfinite(q.grad).all() and (v.grad[0] == 0).all()


def test_dropout_only_in_training():
    attn = SoftmaxAttention(16, 2, attn_drop=0.5, proj_drop=0.5)
    x = torch.randn(1, 9, 16)
    assert not torch.equal(attn(x, (3, 3)), attn(x, (3, 3)))
    attn.eval()
    assert torch.equal(attn(x, (3, 3)), attn(x, (3, 3)))


def local_by_hand(out, v, gate, weight, bias, hw):
    """Compute the local position token by token, neighbour by neighbour."""
    reach = weight.shape[-1] // 2
    maps = F.pad(v.unflatten(1, hw), (0, 0, reach, reach, reach, reach))
    total = out.unflatten(1, hw)
    for i in range(weight.shape[-1]):
        for j in range(weight.shape[-1]):
            total = total + weight[:, 0, i, j] * maps[:, i : i + hw[0], j : j + hw[1]]
    total = total.flatten(1, 2) + bias
    return total if gate is None else total * gate


def local_and_gate(attn, out, projected, layout):
    """Apply the layer's own lines to values and gate that are parts of one projection."""
    _, _, v, gate = projected.chunk(4, -1)
    return attn._local_and_gate(out, v, gate if attn.gate else None, layout)


@pytest.mark.parametrize(
    'hw, channels, size, dtype, tolerance, gate',
    [
        ((9, 13), 72, 5, torch.float32, 1e-6, 'proj'),
        ((1, 1), 5, 3, torch.float32, 1e-6, 'proj'),
        ((10, 3), 16, 7, torch.float32, 1e-6, None),
        ((5, 17), 24, 3, torch.bfloat16, 1e-2, 'proj'),
        ((8, 8), 64, 5, torch.float16, 1e-3, None),
    ],
)
def test_local_position_and_gate_with_gradients(hw, channels, size, dtype, tolerance, gate):
    attn = SoftmaxAttention(channels, 1, lepe=size, gate=gate).to(dtype)
    projected = torch.randn(2, hw[0] * hw[1], 4 * channels).to(dtype)
    out = torch.randn(2, hw[0] * hw[1], channels).to(dtype)
    leaves = [out.requires_grad_(), projected.requires_grad_(), *attn.lepe.parameters()]
    got = local_and_gate(attn, out, projected, TokenLayout(hw))
    exact = [t.detach().double().requires_grad_() for t in leaves]
    parts = exact[1].chunk(4, -1)
    expected = local_by_hand(exact[0], parts[2], parts[3] if gate else None, *exact[2:], hw)
    assert_near_exact(got, leaves, expected, exact, tolerance)


def test_local_position_reads_no_padding_and_skips_extra_tokens():
    attn = SoftmaxAttention(8, 2, lepe=3).double()
    out, v = torch.randn(2, 1, 2 + 12, 8, dtype=torch.float64)
    mask = torch.zeros(1, 14, dtype=torch.bool)
    mask[:, 9:] = True
    weight, bias = attn.lepe.parameters()
    real = v.masked_fill(mask[..., None], 0)[:, 2:]
    expected = local_by_hand(out[:, 2:], real, None, weight, bias, (3, 4))
    layout = TokenLayout((3, 4), mask, num_extra_tokens=2)
    found = attn._local_and_gate(out, v, None, layout)
    torch.testing.assert_close(found, torch.cat([out[:, :2], expected], 1))


class Computed(TorchDispatchMode):
    """Names of operations that are no views."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if not function.is_view:
            self.names.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


def test_local_position_copies_no_gradient():
    attn = SoftmaxAttention(8, 1, lepe=3, gate='proj')
    out, projected = torch.randn(1, 12, 8), torch.randn(1, 12, 32)
    leaves = [out.requires_grad_(), projected.requires_grad_(), *attn.lepe.parameters()]
    parts = projected.chunk(4, -1)
    with Computed() as computed:
        result = attn._local_and_gate(out, parts[2], parts[3], TokenLayout((3, 4)))
    assert computed.names == ['convolution', 'add', 'mul']
    leaves = [out, parts[2], parts[3], *attn.lepe.parameters()]
    grad = torch.ones_like(result)
    with Computed() as computed:
        torch.autograd.grad(result, leaves, grad)
    assert sorted(computed.names) == ['convolution_backward', 'mul', 'mul']


@pytest.mark.parametrize('extra', [0, 2])
def test_mix_feed_forward_by_hand(extra):
    ffn = MixFFN(4, 10).double()
    x = torch.randn(1, extra + 6, 4, dtype=torch.float64)
    y = F.linear(x, ffn.fc1.weight, ffn.fc1.bias)
    local = ffn.dwconv(y[:, extra:].transpose(1, 2).reshape(1, 10, 2, 3)).flatten(2).transpose(1, 2)
    expected = ffn.fc2(F.gelu(torch.cat([y[:, :extra], local], 1)))
    torch.testing.assert_close(ffn(x, (2, 3), extra), expected)


def test_maps_and_tokens_share_memory():
    x = torch.randn(2, 6, 4)
    image = tokens_to_map(x, (2, 3))
    assert image.shape == (2, 4, 2, 3)
    assert image.is_contiguous(memory_format=torch.channels_last)
    assert map_to_tokens(image).data_ptr() == x.data_ptr()
    assert torch.equal(map_to_tokens(image), x)


@pytest.mark.parametrize('shapes', [[(2, 3)], [(2, 3), (1, 4)], ((1, 4), [1, 4], (1, 2))])
def test_several_map_sizes_need_packed_shapes(shapes):
    with pytest.raises(ValueError, match='several map sizes need mmlinattn.ops.PackedShapes, got'):
        RALA(32, 2)(torch.zeros(1, 10, 32), shapes)


@pytest.mark.parametrize('extra', [0, 2])
def test_a_map_without_its_padding(extra):
    """It is no view, of which torch 2.11 compiles no backward pass for any size."""
    x, mask = torch.randn(2, extra + 12, 8), torch.rand(2, extra + 12) < 0.4
    found = unpadded_map(x, TokenLayout((3, 4), mask, num_extra_tokens=extra))
    expected = x.where(~mask[..., None], torch.zeros(()))[:, extra:].mT.unflatten(2, (3, 4))
    assert torch.equal(found, expected) and not found._is_view()
