import pytest
import torch
import torch.nn.functional as F

from mmlinattn.models.layers import (
    RALA,
    ConvFFN,
    MixFFN,
    SoftmaxAttention,
    map_to_tokens,
    softmax_attention,
    tokens_to_map,
)


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


def test_gate_and_local_position_by_hand():
    attn = SoftmaxAttention(8, 2, lepe=3, gate='proj').double()
    x = torch.randn(1, 6, 8, dtype=torch.float64)
    q, k, v, gate = attn.in_proj(x).chunk(4, -1)
    heads = [t.view(1, 6, 2, 4).transpose(1, 2) for t in (q, k, v)]
    out = F.scaled_dot_product_attention(*heads).transpose(1, 2).reshape(1, 6, 8)
    local = attn.lepe(v.transpose(1, 2).reshape(1, 8, 2, 3)).flatten(2).transpose(1, 2)
    torch.testing.assert_close(attn(x, (2, 3)), attn.proj((out + local) * gate))


def test_feed_forward_by_hand():
    ffn = ConvFFN(4, 10).double()
    x = torch.randn(1, 6, 4, dtype=torch.float64)
    y = F.gelu(F.linear(x, ffn.fc1.weight, ffn.fc1.bias))
    local = ffn.dwconv(y.transpose(1, 2).reshape(1, 10, 2, 3)).flatten(2).transpose(1, 2)
    torch.testing.assert_close(ffn(x, (2, 3)), ffn.fc2(y + local))


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
