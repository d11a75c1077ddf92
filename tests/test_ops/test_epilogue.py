"""Local position and gate behind an attention: the formula, and the kernels against it."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from mmlinattn.models.layers import RALA, SoftmaxAttention
from mmlinattn.ops import BackendError, local_gate, use_backend
from mmlinattn.ops.common import dispatch

DEVICE = 'cuda' if torch.cuda.is_available() else 'cpu'
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 1e-2, torch.float16: 1e-3}
FORMS = ['torch'] if dispatch.TRITON_PROBLEM else ['torch', 'triton']
needs_kernels = pytest.mark.skipif(
    dispatch.TRITON_PROBLEM is not None, reason=f'no kernels: {dispatch.TRITON_PROBLEM}'
)


def by_hand(out, v, gate, weight, bias, hw):
    """Token by token, neighbour by neighbour."""
    reach = weight.shape[-1] // 2
    maps = nn.functional.pad(v.unflatten(1, hw), (0, 0, reach, reach, reach, reach))
    total = out.unflatten(1, hw)
    for i in range(weight.shape[-1]):
        for j in range(weight.shape[-1]):
            total = total + weight[:, 0, i, j] * maps[:, i : i + hw[0], j : j + hw[1]]
    total = total.flatten(1, 2) + (0 if bias is None else bias)
    return total if gate is None else total * gate


@pytest.mark.parametrize('form', FORMS)
@pytest.mark.parametrize(
    'hw, channels, size, dtype, kind, gated, biased',
    [
        ((9, 13), 72, 5, torch.float32, torch.float32, True, True),
        ((1, 1), 5, 3, torch.float32, torch.float32, True, False),
        ((10, 3), 16, 7, torch.float32, torch.float32, False, True),
        ((5, 17), 24, 3, torch.bfloat16, torch.bfloat16, True, True),
        ((8, 8), 64, 5, torch.float16, torch.float16, False, False),
    ],
)
def test_equals_the_formula(form, hw, channels, size, dtype, kind, gated, biased):
    """Values and gate as parts of one projection; outputs and all gradients."""
    batch, count = 2, hw[0] * hw[1]
    projected = torch.randn(batch, count, 4 * channels, device=DEVICE).to(dtype)
    out = torch.randn(batch, count, channels, device=DEVICE).to(dtype)
    conv = nn.Conv2d(channels, channels, size, groups=channels, bias=biased).to(DEVICE, kind)
    leaves = [t.requires_grad_() for t in (out, projected)] + list(conv.parameters())

    def run(leaves, function):
        out, projected, weight, *bias = leaves
        v, gate = projected[..., 2 * channels : 3 * channels], projected[..., 3 * channels :]
        return function(out, v, gate if gated else None, weight, bias[0] if bias else None)

    got = run(leaves, lambda *x: local_gate(*x, hw_shape=hw, backend=form))
    grad = torch.randn(got.shape, device=DEVICE).to(dtype)
    exact_leaves = [t.detach().double().requires_grad_() for t in leaves]
    expected = run(exact_leaves, lambda *x: by_hand(*x, hw))
    pairs = [(got, expected)]
    pairs += zip(
        torch.autograd.grad(got, leaves, grad),
        torch.autograd.grad(expected, exact_leaves, grad.double()),
    )
    for i, (a, b) in enumerate(pairs):
        assert ((a.double() - b).norm() / b.norm()).item() < TOLERANCE[dtype], i


class Computed(TorchDispatchMode):
    """Names of operations that are no views."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if not function.is_view:
            self.names.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


def test_torch_copies_no_gradient():
    """As it would where the sum is written into a view of the convolution's result."""
    out, v, gate = torch.randn(3, 1, 12, 8).unbind()
    leaves = [t.requires_grad_() for t in (out, v, gate, torch.randn(8, 1, 3, 3))]
    result = local_gate(*leaves, None, hw_shape=(3, 4), backend='torch')
    grad = torch.ones_like(result)
    with Computed() as computed:
        torch.autograd.grad(result, leaves, grad)
    assert sorted(computed.names) == ['convolution_backward', 'mul', 'mul']
    with torch.no_grad(), Computed() as computed:
        local_gate(*leaves, None, hw_shape=(3, 4), backend='torch')
    assert computed.names == ['convolution', 'add_', 'mul']


@needs_kernels
@pytest.mark.parametrize('layer', [RALA, SoftmaxAttention])
def test_a_layer_by_the_kernels_as_without(layer):
    """With padding, whose values are not read."""
    attn = layer(32, 2, lepe=5, gate='proj', rotary=False).to(DEVICE)
    x = torch.randn(2, 7 * 6, 32, device=DEVICE)
    mask = torch.zeros(2, 42, dtype=torch.bool, device=DEVICE)
    mask[0, 20:] = True
    results = {}
    for backend in ('torch', 'triton'):
        leaf = x.clone().requires_grad_()
        with use_backend(backend):
            out = attn(leaf, (7, 6), key_padding_mask=mask)
        grads = torch.autograd.grad(out.square().sum(), [leaf, *attn.parameters()])
        results[backend] = (out, *grads)
    torch.testing.assert_close(results['triton'], results['torch'], rtol=1e-4, atol=1e-4)
    assert not torch.equal(results['triton'][0], results['torch'][0])


@needs_kernels
def test_the_gate_decides_the_type():
    """Under autocast a gate that is no projection stays float32."""
    out, v = torch.randn(2, 1, 12, 8, device=DEVICE).bfloat16()
    gate = torch.randn(1, 12, 8, device=DEVICE, requires_grad=True)
    weight = torch.randn(8, 1, 3, 3, device=DEVICE)
    got = local_gate(out, v, gate, weight, None, hw_shape=(3, 4), backend='triton')
    assert got.dtype == torch.float32
    (d_gate,) = torch.autograd.grad(got.sum(), gate)
    exact = by_hand(out.float(), v.float(), None, weight, None, (3, 4))
    torch.testing.assert_close(got, exact * gate, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(d_gate, exact.bfloat16().float(), rtol=1e-2, atol=1e-2)


@needs_kernels
@pytest.mark.parametrize('gated', [True, False])
def test_operators_keep_torchs_rules(gated):
    import mmlinattn.ops.epilogue.triton_ops  # noqa: F401  registers

    out, v, gate = (t.requires_grad_() for t in torch.randn(3, 1, 12, 8, device=DEVICE).unbind())
    weight = torch.randn(8, 1, 3, 3, device=DEVICE, requires_grad=True)
    bias = torch.randn(8, device=DEVICE, requires_grad=True)
    tests = ('test_schema', 'test_autograd_registration', 'test_faketensor')
    args = (out, v, gate if gated else None, weight, bias, 3, 4, gated)
    forward = torch.ops.mmlinattn.local_gate.default
    torch.library.opcheck(forward, args, test_utils=(*tests, 'test_aot_dispatch_static'))
    backward = torch.ops.mmlinattn.gate_backward.default
    given = [t.detach() for t in (out, v, gate)]
    torch.library.opcheck(backward, given, test_utils=tests)


def test_bad_input_is_named():
    out, weight = torch.randn(1, 12, 8), torch.randn(8, 1, 3, 3)
    for args, message in (
        ((out, out[:, :6], None, weight), r'v must have the shape of out .* got \(1, 6, 8\)'),
        ((out, out, out[:, :6], weight), r'gate must have the shape of out'),
        ((out, out.half(), None, weight), r'v must be torch.float32 as out, got torch.float16'),
        ((out, out, None, weight[:, :, :2, :2]), r'K odd, got \(8, 1, 2, 2\)'),
        ((out[0], out[0], None, weight), r'out must have shape \(B, N, C\), got \(12, 8\)'),
    ):
        with pytest.raises(ValueError, match=message):
            local_gate(*args, None, hw_shape=(3, 4))
    with pytest.raises(ValueError, match=r'hw_shape=\(3, 5\)'):
        local_gate(out, out, None, weight, None, hw_shape=(3, 5))


@needs_kernels
def test_kernels_say_what_they_cannot():
    out = torch.randn(1, 12, 8, device=DEVICE)
    weight = torch.randn(8, 1, 9, 9, device=DEVICE)
    with pytest.raises(BackendError, match='local_gate: .*convolutions up to 7x7, got 9'):
        local_gate(out, out, None, weight, None, hw_shape=(3, 4), backend='triton')
    out = out.double()
    with pytest.raises(BackendError, match='got torch.float64'):
        local_gate(out, out, None, weight.double(), None, hw_shape=(3, 4), backend='triton')
