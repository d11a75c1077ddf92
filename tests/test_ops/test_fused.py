"""Triton kernels against the float64 definitions; without a GPU, in Triton's interpreter."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from mmlinattn.ops import (
    BackendError,
    PackedShapes,
    Rotary,
    adaptive_features,
    linear_attention,
    mala_attention,
    rala_attention,
    random_walk_attention,
    ripple_attention,
)
from mmlinattn.ops.common import dispatch
from mmlinattn.ops.common.launch import CallKey, _planned
from tests.sizes import LONG, some

if dispatch.TRITON_PROBLEM:
    pytest.skip(dispatch.TRITON_PROBLEM, allow_module_level=True)

DEVICE = 'cuda' if torch.cuda.is_available() else 'cpu'
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}


@pytest.fixture(autouse=True)
def _poison():
    """What a kernel does not write is NaN, not what was there before."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def fused_projection(b, n, h, d, dtype, draw=torch.randn):
    """q, k, v (B, heads, N, d) as views of one tensor, which is returned first."""
    x = draw(b, n, 3, h, d, device=DEVICE).to(dtype).requires_grad_()
    return x, x.permute(2, 0, 3, 1, 4)


def half_padded(b, n, padding=True):
    """The mask of a batch whose first image is padding from its middle on."""
    mask = torch.zeros(b, n, dtype=torch.bool, device=DEVICE)
    mask[0, n // 2 + 1 :] = padding
    return mask


def compare(operator, leaves, dtype, grad=None, **options):
    """``operator`` fused against the reference in float64: output, gradients.

    The first leaf (B, N, 3, heads, d) is q, k and v: each has its own error.
    """

    def run(leaves, backend):
        x, *others = leaves
        return operator(*x.permute(2, 0, 3, 1, 4), *others, backend=backend, **options)

    try:
        out = run(leaves, 'triton')
    except BackendError as error:
        if DEVICE == 'cpu':
            raise
        pytest.skip(str(error))  # this GPU has too little shared memory
    assert out.dtype == dtype
    grad = torch.randn(out.shape, device=DEVICE) if grad is None else grad
    grad = grad.to(dtype)
    (dx, *grads) = torch.autograd.grad(out, leaves, grad)
    exact_leaves = [x.detach().double().requires_grad_() for x in leaves]
    exact = run(exact_leaves, 'reference')
    (exact_dx, *exact_grads) = torch.autograd.grad(exact, exact_leaves, grad.double())
    found = [out, *dx.unbind(2), *grads]
    for i, (a, b) in enumerate(zip(found, [exact, *exact_dx.unbind(2), *exact_grads])):
        # What is 0 but for eps, as the gradient of a single key, is a difference of large terms.
        vanishes = b.norm() < 1e-6
        error = ((a.double() - b).norm() / (grad if vanishes else b).norm()).item()
        assert error < TOLERANCE[dtype], f'result {i}: output, gradients of q, k, v, others'


AUGMENTED_CASES = [
    # batch, heads, (H, W), d, dtype, feature map, rotary, padding
    (2, 2, (7, 11), 20, torch.float32, 'elu+1', True, True),
    (1, 1, (1, 1), 16, torch.float32, 'elu+1', True, False),
    (1, 3, (9, 17), 32, torch.float32, 'relu', False, True),
    (1, 1, (5, 7), 128, torch.float32, 'elu+1', True, False),
    (1, 2, (13, 11), 32, torch.bfloat16, 'elu+1', True, True),
    (1, 1, (16, 16), 64, torch.float16, 'elu+1', True, False),
]


@pytest.mark.parametrize('operator', [rala_attention, mala_attention])
@pytest.mark.parametrize('b, h, hw, d, dtype, phi, rotary, padding', AUGMENTED_CASES)
def test_rala_and_mala(operator, b, h, hw, d, dtype, phi, rotary, padding):
    n = hw[0] * hw[1]
    x, _ = fused_projection(b, n, h, d, dtype)
    compare(
        operator, [x], dtype, rotary=Rotary(hw, d) if rotary else None, feature_map=phi,
        key_padding_mask=half_padded(b, n, padding),
        eps=1e-2 if operator is mala_attention and phi == 'relu' else 1e-6,
    )  # fmt: skip


@pytest.mark.parametrize(
    'operator, d, dtype, rotary',
    [
        (linear_attention, 16, torch.float32, True),
        (rala_attention, 20, torch.float32, True),
        (mala_attention, 16, torch.float32, True),
        (mala_attention, 20, torch.float16, False),
    ],
)
def test_packed_images(operator, d, dtype, rotary):
    """Images of one token, of a part of a chunk and of several chunks."""
    packed = PackedShapes([(3, 7), (1, 1), (7, 11)])
    x, _ = fused_projection(1, packed.num_tokens, 1, d, dtype)
    position = Rotary(packed, d) if rotary else None
    compare(operator, [x], dtype, rotary=position, packed=packed, feature_map='elu+1')


WALK_CASES = [
    # batch, heads, N, d, anchors, dtype, steps, one set for all images
    (2, 2, 77, 20, 6, torch.float32, None, True),
    (1, 1, 1, 16, 2, torch.float32, None, True),
    (2, 1, 70, 16, 20, torch.float32, 1, False),
    (1, 1, 90, 128, 3, torch.float32, 3, False),
    (2, 1, 150, 32, 64, torch.bfloat16, None, False),
    (1, 2, 143, 32, 33, torch.float16, 2, True),
]


@pytest.mark.parametrize('b, h, n, d, m, dtype, steps, shared', WALK_CASES)
def test_random_walk(b, h, n, d, m, dtype, steps, shared):
    x, _ = fused_projection(b, n, h, d, dtype)
    lead = (h,) if shared else (b, h)
    anchors = [(0.3 * torch.randn(*lead, m, d, device=DEVICE)).to(dtype) for _ in range(2)]
    compare(
        random_walk_attention, [x, *(a.requires_grad_() for a in anchors)], dtype,
        decay=0.5, steps=steps, key_padding_mask=half_padded(b, n),
    )  # fmt: skip


LINEAR_CASES = [
    # batch, heads, N, d, dtype, feature map
    (2, 2, 77, 20, torch.float32, 'identity'),
    (1, 1, 1, 16, torch.float32, 'identity'),
    (1, 2, 143, 64, torch.bfloat16, 'identity'),
    (2, 1, 130, 32, torch.float16, 'identity'),
    (2, 2, 77, 20, torch.float32, 'elu+1'),
    (2, 1, 70, 20, torch.float32, 'relu'),
    (1, 1, 100, 32, torch.bfloat16, 'elu+1'),
]


@pytest.mark.parametrize('mean', [False, True])
@pytest.mark.parametrize('b, h, n, d, dtype, phi', LINEAR_CASES)
def test_linear(b, h, n, d, dtype, phi, mean):
    x = torch.rand(b, n, 3, h, d, device=DEVICE)
    x = (x if phi == 'identity' else 2 * x - 1).to(dtype).requires_grad_()
    compare(
        linear_attention, [x], dtype, key_padding_mask=half_padded(b, n), eps=0.1,
        feature_map=phi, mean_normaliser=mean,
    )  # fmt: skip


@pytest.mark.parametrize('hw, d, dtype', [((7, 11), 20, torch.float32), ((5, 9), 32, torch.half)])
def test_linear_with_rotary_position(hw, d, dtype):
    n = hw[0] * hw[1]
    x, _ = fused_projection(2, n, 2, d, dtype, torch.rand)
    mask = half_padded(2, n)
    compare(linear_attention, [x], dtype, key_padding_mask=mask, eps=0.1, rotary=Rotary(hw, d))


RIPPLE_CASES = [
    # batch, heads, (H, W), d, R, dtype
    (2, 1, (9, 13), 20, 3, torch.float32),
    (1, 1, (1, 1), 16, 1, torch.float32),
    (1, 1, (5, 20), 16, 6, torch.float32),
    (1, 1, (4, 4), 16, 9, torch.float32),
    (1, 1, (11, 11), 32, 4, torch.bfloat16),
    (1, 1, (17, 9), 64, 2, torch.float16),
]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize('b, h, hw, d, max_distance, dtype', some(RIPPLE_CASES, every=2))
def test_ripple(b, h, hw, d, max_distance, dtype):
    n = hw[0] * hw[1]
    x, _ = fused_projection(b, n, h, d, dtype, torch.rand)
    weights = torch.rand(b, n, h, max_distance + 1, device=DEVICE).softmax(-1).to(dtype)
    leaves = [x, weights.transpose(1, 2).requires_grad_()]
    compare(ripple_attention, leaves, dtype, hw_shape=hw, key_padding_mask=half_padded(b, n))


@pytest.mark.parametrize('largest', [3e-3, 300.0])
def test_ripple_gradients_of_any_size_fit_float16(largest):
    x, _ = fused_projection(1, 400, 1, 32, torch.half, torch.rand)
    weights = torch.rand(1, 1, 400, 3, device=DEVICE).softmax(-1).half().requires_grad_()

    def run(q, k, v, weights, **options):
        # The values differ in sign, their mean does not hide that of the gradients.
        return ripple_attention(q, k, 2 * v - 1, weights, hw_shape=(20, 20), **options)

    grad = largest * torch.randn(1, 1, 400, 32, device=DEVICE).clamp(-1, 1)
    compare(run, [x, weights], torch.float16, grad + largest * (largest > 1))


@pytest.mark.parametrize('operator', [linear_attention, rala_attention])
def test_queries_without_a_positive_channel_fit_float16(operator):
    x = torch.randn(1, 70, 3, 1, 16, device=DEVICE)
    x[0, 5, 0] = -1
    x[0, ::3, 1] = -1
    compare(operator, [x.half().requires_grad_()], torch.float16, feature_map='relu')


@pytest.mark.parametrize('operator', [linear_attention, rala_attention])
def test_gradients_of_one_sign_fit_float16(operator):
    # Small, for no weight to be so large that its gradient alone leaves the range.
    x = (0.3 * torch.randn(1, 600, 3, 1, 16, device=DEVICE)).half().requires_grad_()
    grad = 5000 + torch.randn(1, 1, 600, 16, device=DEVICE)
    compare(operator, [x], torch.float16, grad, feature_map='elu+1')


@pytest.mark.parametrize('dtype', [torch.float32, torch.float16])
@pytest.mark.parametrize('name', ['linear', 'rala', 'random_walk', 'ripple'])
def test_all_padding_yields_zero(name, dtype):
    x, (q, k, v) = fused_projection(2, 40, 2, 16, dtype)
    mask = torch.arange(2, device=DEVICE)[:, None].expand(2, 40) == 0
    options = dict(key_padding_mask=mask, backend='triton')
    if name == 'rala':
        out = rala_attention(q, k, v, **options)
    elif name == 'linear':
        out = linear_attention(q.exp(), k.exp(), v, **options)
    elif name == 'ripple':
        weights = torch.full((2, 2, 40, 4), 0.25, device=DEVICE, dtype=dtype)
        out = ripple_attention(q.exp(), k.exp(), v, weights, hw_shape=(5, 8), **options)
    else:
        anchors = torch.randn(2, 5, 16, device=DEVICE)
        out = random_walk_attention(q, k, v, anchors, anchors, **options)
    assert (out[0] == 0).all() and (out[1] != 0).any()
    out.sum().backward()
    assert torch.isfinite(x.grad).all()


def test_large_logits_of_the_token_softmax():
    """Online softmax: the largest score may come in any chunk."""
    for order in (1, -1):
        q, k, v = torch.randn(3, 1, 1, 400, 16, device=DEVICE)
        k = k + order * torch.linspace(-20, 20, 400, device=DEVICE)[:, None]
        exact = rala_attention(q.double(), k.double(), v.double(), backend='reference')
        out = rala_attention(q, k, v, backend='triton')
        assert (out.double() - exact).norm() / exact.norm() < 1e-5


def test_sums_of_chunks_are_not_rounded_by_autocast():
    q, k, v = torch.rand(3, 1, 1, 400, 16, device=DEVICE)
    expected = linear_attention(q, k, v, backend='triton')
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        out = linear_attention(q, k, v, backend='triton')
    torch.testing.assert_close(out, expected)


# Tokens of several chunks.
MANY = 1600 if DEVICE == 'cuda' else 150


@pytest.mark.slow
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
@pytest.mark.parametrize('name', ['linear', 'rala', 'walk', 'ripple'])
def test_three_chunks_and_more(monkeypatch, name, dtype):
    """Sums over chunks, with one that is all padding and a last one that is not full."""
    chunks = []
    if DEVICE == 'cpu':
        from mmlinattn.ops.common import launch

        start = launch.start
        monkeypatch.setattr(
            launch, 'start', lambda one, x: chunks.append(one.grid[1]) or start(one, x)
        )
    draw = torch.randn if name in ('rala', 'walk') else torch.rand
    x, _ = fused_projection(2, MANY, 1, 16, dtype, draw)
    shape = (MANY // 10, 10)
    operator, shapes, options = {
        'linear': (linear_attention, [], {}),
        'rala': (rala_attention, [], dict(rotary=Rotary(shape, 16))),
        'walk': (random_walk_attention, [(1, 5, 16)] * 2, dict(decay=0.5)),
        'ripple': (ripple_attention, [(2, 1, MANY, 3)], dict(hw_shape=shape)),
    }[name]
    others = [draw(*s, device=DEVICE).to(dtype).requires_grad_() for s in shapes]
    mask = torch.zeros(2, MANY, dtype=torch.bool, device=DEVICE)
    mask[0, : MANY // 2] = True
    compare(operator, [x, *others], dtype, key_padding_mask=mask, **options)
    assert DEVICE != 'cpu' or sum(count >= 3 for count in chunks) >= 2, chunks


@pytest.mark.parametrize(
    'decay, steps',
    [(0.1, None), (0.9, None), (0.95, None), (0.5, 2), (0.9, 7), (0.9999, 5), (1 - 1e-8, 2)],
)
def test_walks_between_anchors_in_float32(decay, steps):
    """Gradients of the series and of a sum of steps, in closed form inside the kernel; products
    there stay float32 where torch allows its own TF32."""
    x, _ = fused_projection(2, 70, 1, 16, torch.float32)
    anchors = [torch.randn(1, 9, 16, device=DEVICE).requires_grad_() for _ in range(2)]
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision('high')
    try:
        compare(random_walk_attention, [x, *anchors], torch.float32, decay=decay, steps=steps)
    finally:
        torch.set_float32_matmul_precision(before)


def test_anchors_of_another_type_round_in_the_kernel():
    """Under autocast parameters stay float32, and so do their gradients."""
    _, (q, k, v) = fused_projection(2, 40, 2, 16, torch.bfloat16)
    anchors = torch.randn(2, 2, 6, 16, device=DEVICE).requires_grad_()
    out = random_walk_attention(q, k, v, *anchors, backend='triton')
    rounded = anchors.detach().bfloat16().requires_grad_()
    expected = random_walk_attention(q, k, v, *rounded, backend='triton')
    assert torch.equal(out, expected) and out.dtype == torch.bfloat16
    (grad,) = torch.autograd.grad(out.sum(), anchors)
    (of_rounded,) = torch.autograd.grad(expected.sum(), rounded)
    assert grad.dtype == torch.float32
    torch.testing.assert_close(grad.bfloat16(), of_rounded)


def test_anchors_of_two_types():
    """The keys of the anchors were rounded to the type of their queries."""
    _, (q, k, v) = fused_projection(1, 40, 2, 16, torch.float32)
    anchors = torch.randn(2, 6, 16, device=DEVICE).bfloat16(), torch.randn(2, 6, 16, device=DEVICE)
    for pair in (anchors, anchors[::-1]):
        out = random_walk_attention(q, k, v, *pair, backend='triton')
        expected = random_walk_attention(q, k, v, *pair, backend='torch')
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


class Launches(TorchDispatchMode):
    """What would start work on a GPU: kernels, and operations of torch that compute."""

    quiet = ('_unsafe_view', '_reshape_alias')

    def __init__(self, monkeypatch):
        super().__init__()
        self.seen = []
        if DEVICE == 'cpu':
            from triton.runtime.interpreter import GridExecutor as Kernel
        else:
            from triton.runtime.jit import JITFunction as Kernel
        method = '__call__' if DEVICE == 'cpu' else 'run'
        start = getattr(Kernel, method)

        def start_and_tell(kernel, *args, **kwargs):
            self.seen.append(kernel.fn.__name__)
            with _disable_current_modes():  # the interpreter's own copies
                return start(kernel, *args, **kwargs)

        monkeypatch.setattr(Kernel, method, start_and_tell)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        out = function(*args, **kwargs)
        # contiguous() and reshape() are views only where they copy nothing.
        copied = (
            function.is_view
            and isinstance(out, torch.Tensor)
            and out.untyped_storage().data_ptr() != args[0].untyped_storage().data_ptr()
        )
        name = function._schema.name.split('::')[1]
        if copied or not (function.is_view or 'empty' in name or name in self.quiet):
            self.seen.append(str(function))
        return out


@pytest.mark.parametrize(
    'name, most_forward, most_backward',
    [('linear', 2, 2), ('rala', 3, 3), ('walk', 3, 5), ('step', 2, 5), ('ripple', 2, 3),
     ('adaptive', 1, 4)],
)  # fmt: skip
def test_launches_of_an_operator(monkeypatch, name, most_forward, most_backward):
    """All between two passes over the tokens is one kernel, and no operation of torch."""
    q, k, v = torch.rand(3, 2, 1, 20, 16, device=DEVICE, dtype=torch.bfloat16).requires_grad_()
    leaves = [t.detach().requires_grad_() for t in (q, k, v)]
    anchors = [torch.rand(1, 5, 16, device=DEVICE).requires_grad_() for _ in range(2)]
    rings = torch.rand(2, 1, 20, 3, device=DEVICE).requires_grad_()
    mask = torch.zeros(2, 20, dtype=torch.bool, device=DEVICE)
    rotary = Rotary((4, 5), 16)
    rotary.axes(q.dtype, q.device)  # kept
    learnt = [torch.rand(*s, device=DEVICE).requires_grad_() for s in ((16, 16), (16, 32), (16,))]
    operator, sources, options = {
        'linear': (linear_attention, leaves, dict(key_padding_mask=mask)),
        'rala': (rala_attention, leaves, dict(rotary=rotary, key_padding_mask=mask)),
        'walk': (random_walk_attention, [*leaves, *anchors], {}),
        'step': (random_walk_attention, [*leaves, *anchors], dict(steps=1)),
        'ripple': (ripple_attention, [*leaves, rings], dict(hw_shape=(4, 5))),
        'adaptive': (adaptive_features, [*leaves[:2], *learnt], {}),
    }[name]
    # As outside of this mode: tables are kept.
    monkeypatch.setattr(torch._C, '_len_torch_dispatch_stack', lambda: 0)
    grad = torch.ones_like(q)
    with Launches(monkeypatch) as launches:
        out = operator(*sources, backend='triton', **options)
        forward = list(launches.seen)
        launches.seen.clear()
        torch.autograd.grad(out, sources, [grad] * len(out) if name == 'adaptive' else grad)
    backward = launches.seen
    assert 0 < len(forward) <= most_forward, forward
    assert 0 < len(backward) <= most_backward, backward


def operator_cases():
    """Arguments of the custom operator for every module of kernels and its optional tensors."""
    q, k, v = (t.detach().requires_grad_() for t in torch.randn(3, 1, 2, 20, 16, device=DEVICE))
    mask = torch.arange(20, device=DEVICE)[None] > 15
    axes = Rotary((4, 5), 16).axes(q.dtype, q.device)
    packed = PackedShapes([(2, 4), (4, 3)])
    tables = Rotary(packed, 16).axes(q.dtype, q.device)
    anchors = [torch.randn(2, 4, 16, device=DEVICE).requires_grad_() for _ in range(2)]
    positive = [t.detach().exp().requires_grad_() for t in (q, k)]
    groups = torch.rand(1, 2, 20, 3, device=DEVICE, requires_grad=True)
    shapes = ((2, 16, 16), (2, 16, 32), (2, 16))
    learnt = [torch.randn(shape, device=DEVICE, requires_grad=True) for shape in shapes]
    images = packed.table(4, q.device)

    def linear(kind, feature_map='elu+1', eps=1e-6):
        return repr((kind, feature_map, eps, True, False))

    return {
        'rala': ('linear', [q, k, v, None, None, axes], [5, 0], linear('rala')),
        'linear': ('linear', [q, k, v, mask, None, None], [0, 0], linear('', 'relu')),
        'mala': ('linear', [q, k, v, mask, None, axes], [5, 0], linear('mala')),
        'packed': ('linear', [q, k, v, None, images, tables], [0, 12], linear('rala')),
        'walk': ('random_walk', [q, k, v, *anchors, mask], [], repr((0.1, None))),
        'step': ('random_walk', [q, k, v, *anchors, None], [], repr((0.1, 1))),
        'ripple': ('ripple', [*positive, v, groups, None], [4, 5], repr((1e-6,))),
        'padded ripple': ('ripple', [*positive, v, groups, mask], [4, 5], repr((1e-6,))),
        'adaptive': ('learnt_features', [q, k, *learnt], [], repr(())),
    }


CASES = ['rala', 'linear', 'packed', 'mala', 'walk', 'step', 'ripple', 'padded ripple', 'adaptive']


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize('case', CASES if LONG else ['rala', 'walk', 'ripple', 'adaptive'])
def test_the_custom_operator_keeps_torchs_rules(monkeypatch, case):
    from mmlinattn.ops.common import launch

    # Between the tensors of a state is memory that nobody writes; opcheck compares it as well.
    monkeypatch.setattr(torch.Tensor, 'new_empty', torch.Tensor.new_zeros)
    package, tensors, sizes, options = operator_cases()[case]
    module = f'mmlinattn.ops.{package}.triton_kernels'
    tests = ('test_schema', 'test_autograd_registration', 'test_faketensor')
    options = f'({tuple(x is not None for x in tensors)}, {options})'
    tensors = [x for x in tensors if x is not None]
    args = (tensors, module, sizes, options)
    forward = launch._forward._opoverload
    torch.library.opcheck(forward, args, test_utils=(*tests, 'test_aot_dispatch_static'))
    tensors = [t.detach() for t in tensors]
    results = forward(tensors, module, sizes, options)
    grads = [torch.ones_like(t) for t in results[: 2 if case == 'adaptive' else 1]]
    saved = results if case == 'adaptive' else results[1:]
    args = (grads, tensors, saved, module, sizes, options)
    torch.library.opcheck(launch._backward._opoverload, args, test_utils=tests)


def test_the_lazy_minus_sign_of_torch_is_read():
    """Gradients of complex numbers have it; the address of a tensor does not show it."""
    a, b, grad_a, grad_b = torch.randn(4, 1, 2, 20, 16, device=DEVICE)
    q, grad = torch.complex(a, b).conj().imag, torch.complex(grad_a, grad_b).conj().imag
    assert q.is_neg() and grad.is_neg()
    found = []
    for backend in ('triton', 'torch'):
        leaves = [x.detach().requires_grad_() for x in (q, grad_a, grad_b)]
        out = rala_attention(*leaves, backend=backend)
        found.append([out, *torch.autograd.grad(out, leaves, grad)])
    assert leaves[0].is_neg()
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_saved_tensors_that_a_hook_moved_are_not_taken_for_aligned():
    q, moved = torch.randn(1, 2, 20, 16, device=DEVICE), torch.randn(5, device=DEVICE)[1:]
    assert CallKey.of(None, q).aligned and not CallKey.of(None, q, saved=[moved]).aligned


def test_fake_tensors_outside_of_their_mode_launch_nothing():
    """On a GPU their addresses are 0."""
    mode = FakeTensorMode()
    fakes = [mode.from_tensor(x) for x in torch.randn(3, 1, 2, 20, 16, device=DEVICE)]
    out = rala_attention(*fakes, backend='triton')
    assert isinstance(out, FakeTensor) and out.shape == (1, 2, 20, 16)


def test_second_derivatives_of_the_custom_operator_name_the_cure():
    q, k, v = (t.detach().requires_grad_() for t in torch.randn(3, 1, 2, 20, 16, device=DEVICE))
    with FlopCounterMode(display=False):
        out = rala_attention(q, k, v, backend='triton')
    (grad,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match='has no second derivatives'):
        grad.sum().backward()


def test_channels_that_are_too_far_apart_for_a_kernel():
    """Offsets of channels are 32 bits in the kernels."""
    q, k, v = torch.randn(3, 1, 2, 20, 16, device=DEVICE)
    key = CallKey.of(None, q, k, v, None)
    assert _planned(len, key) == len(key)
    strides = (*key.strides[:2], (*v.stride()[:3], 2**27), None)
    with pytest.raises(ValueError, match='channels .* 134217728 numbers apart.*contiguous'):
        _planned(len, key._replace(strides=strides))


@pytest.mark.parametrize('backend', ['torch', 'triton'])
def test_first_derivatives_behind_activation_checkpointing_can_be_recorded(backend):
    """torch.utils.checkpoint lets a backward pass read the saved tensors once."""
    q, k, v = (t.detach().requires_grad_() for t in torch.randn(3, 1, 2, 20, 16, device=DEVICE))

    def call(q):
        return rala_attention(q, k, v, backend=backend)

    out = checkpoint(call, q, use_reentrant=False)
    (grad,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    torch.testing.assert_close(grad, torch.autograd.grad(call(q).square().sum(), q)[0])
    with pytest.raises(RuntimeError, match='has no second derivatives'):
        grad.sum().backward()


@pytest.mark.slow
@pytest.mark.parametrize('dynamic', [None, True])
def test_compiles_without_graph_breaks(dynamic):
    q, k, v = (t.detach().requires_grad_() for t in torch.randn(3, 1, 2, 20, 16, device=DEVICE))
    anchors = torch.randn(2, 4, 16, device=DEVICE)
    weights = torch.rand(1, 2, 20, 3, device=DEVICE, requires_grad=True)

    learnt = [torch.randn(16, n, device=DEVICE) for n in (16, 32)]

    def all_of_them(q, k, v):
        q, k = adaptive_features(q, k, *learnt, learnt[0][0], backend='triton')
        x = random_walk_attention(q, k, v, anchors, anchors, backend='triton')
        x = rala_attention(x, k, v, backend='triton')
        x = linear_attention(x.exp(), k.exp(), v, backend='triton')
        x = mala_attention(x, k, v, rotary=Rotary((4, 5), 16), backend='triton')
        return ripple_attention(x.exp(), k.exp(), v, weights, hw_shape=(4, 5), backend='triton')

    compiled = torch.compile(all_of_them, fullgraph=True, dynamic=dynamic, backend='aot_eager')
    expected = all_of_them(q, k, v)
    grad = torch.randn_like(expected)
    expected_grads = torch.autograd.grad(expected, (q, k, v, weights), grad)
    out = compiled(q, k, v)
    torch.testing.assert_close(out, expected)
    grads = torch.autograd.grad(out, (q, k, v, weights), grad)
    torch.testing.assert_close(grads, expected_grads)


@pytest.mark.parametrize(
    'change, message',
    [
        (dict(dtype=torch.float64), 'float16, bfloat16 and float32, got torch.float64'),
        (dict(d=8), 'head dims 16 to 128, got 8'),
        (dict(d=160), 'got 160'),
        (dict(feature_map='softmax'), "feature_map 'softmax' has no kernel"),
        (dict(token_weights=torch.ones(1, 1, 1, device=DEVICE)), 'token_weights have no kernel'),
        (dict(eps=0.0), 'eps=0.0 has no kernel'),
    ],
)
def test_a_forced_kernel_that_cannot_serve_says_why(change, message):
    change = dict(dict(dtype=torch.float32, d=16), **change)
    q, k, v = torch.randn(3, 1, 2, 20, change.pop('d'), device=DEVICE).to(change.pop('dtype'))
    with pytest.raises(BackendError, match=f'rala_attention: .*{message}'):
        rala_attention(q, k, v, backend='triton', **change)


@pytest.mark.parametrize(
    'groups, max_distance, message',
    [('log', 3, "groups='log' have no kernel"), ('chebyshev', 17, 'R from 1 to 16, got 17'),
     ('chebyshev', 0, 'got 0')],
)  # fmt: skip
def test_ripple_kernels_say_what_they_cannot(groups, max_distance, message):
    q, k, v = torch.rand(3, 1, 1, 20, 16, device=DEVICE)
    weights = torch.rand(1, 1, 20, max_distance + 1, device=DEVICE)
    with pytest.raises(BackendError, match=message):
        ripple_attention(q, k, v, weights, hw_shape=(4, 5), groups=groups, backend='triton')


def test_an_empty_batch_has_no_kernel():
    q = torch.zeros(0, 2, 20, 16, device=DEVICE)
    with pytest.raises(BackendError, match=r'kernels need tokens, got \(0, 2, 20, 16\)'):
        linear_attention(q, q, q, backend='triton')
    assert linear_attention(q, q, q).shape == q.shape


def test_too_many_anchors_have_no_kernel():
    q, k, v = torch.randn(3, 1, 1, 20, 16, device=DEVICE)
    anchors = torch.randn(1, 129, 16, device=DEVICE)
    with pytest.raises(BackendError, match='at most 128 anchors, got 129'):
        random_walk_attention(q, k, v, anchors, anchors, backend='triton')


def test_the_output_is_not_kept_for_the_backward_pass():
    """Only the state is: the output is as large as the queries."""
    q, k, v = torch.rand(3, 1, 2, 70, 16, device=DEVICE).requires_grad_()
    out = linear_attention(q, k, v, backend='triton')
    kept = [x for x in out.grad_fn.saved_tensors if x is not None]
    assert len(kept) == 4 and all(x.data_ptr() != out.data_ptr() for x in kept)


def test_fake_tensors_and_graphs_see_the_custom_operator():
    """A launch would read their memory, which is not there."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    with FakeTensorMode():
        q, k, v = (torch.empty(1, 2, 40, 16, device=DEVICE) for _ in 'qkv')
        assert linear_attention(q, k, v, backend='triton').shape == q.shape
    q, k, v = torch.rand(3, 1, 2, 40, 16, device=DEVICE)
    graph = make_fx(lambda q: linear_attention(q, k, v, backend='triton'))(q).graph
    assert 'mmlinattn.kernels.default' in [str(node.target) for node in graph.nodes]


def test_forward_mode_derivatives_have_no_kernel():
    from torch.autograd import forward_ad

    q, k, v = torch.rand(3, 1, 2, 40, 16, device=DEVICE)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(q, torch.ones_like(q))
        with pytest.raises(BackendError, match='forward-mode'):
            linear_attention(dual, k, v, backend='triton')
