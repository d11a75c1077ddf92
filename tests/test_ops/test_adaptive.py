"""The learnt feature map: its formula, and the kernels against it; see test_fused.py."""

import math

import pytest
import torch

from mmlinattn.models.layers import build_feature_map
from mmlinattn.ops import BackendError, adaptive_features, use_backend
from mmlinattn.ops.common import dispatch

DEVICE = 'cuda' if torch.cuda.is_available() else 'cpu'
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}
needs_kernels = pytest.mark.skipif(
    dispatch.TRITON_PROBLEM is not None, reason=f'no kernels: {dispatch.TRITON_PROBLEM}'
)


def parameters(d, m, heads=None, dtype=torch.float32):
    """W1, W2 and b2 as a layer starts them."""
    lead = () if heads is None else (heads,)
    bound = (2 * m) ** -0.5
    drawn = (
        torch.randn(*lead, m, d),
        torch.empty(*lead, m, 2 * m).uniform_(-bound, bound),
        torch.empty(*lead, m).uniform_(-bound, bound),
    )
    return [t.to(DEVICE, dtype).requires_grad_() for t in drawn]


def before_relu(x, w1, w2, b2):
    """In the type of x, for one map or one a head."""
    phase = torch.einsum('bhnd,hmd->bhnm', x, w1.expand(x.shape[1], *w1.shape[-2:]))
    m = phase.shape[-1]
    w2 = w2.expand(x.shape[1], m, 2 * m)
    y = torch.einsum('bhnm,hom->bhno', phase.sin(), w2[..., :m])
    y = y + torch.einsum('bhnm,hom->bhno', phase.cos(), w2[..., m:])
    return y + b2.expand(x.shape[1], m)[:, None]


@pytest.mark.parametrize('heads', [None, 3])
def test_equals_the_formula_number_by_number(heads):
    q, k = torch.randn(2, 1, 3, 4, 5, dtype=torch.float64)
    w1, w2, b2 = (t.detach().cpu() for t in parameters(5, 2, heads, torch.float64))
    for x, out in zip((q, k), adaptive_features(q, k, w1, w2, b2, backend='torch')):
        assert out.shape == (1, 3, 4, 2)
        for h in range(3):
            a, b, c = (w1, w2, b2) if heads is None else (w1[h], w2[h], b2[h])
            for n in range(4):
                waves = [f(float(a[i] @ x[0, h, n])) for f in (math.sin, math.cos) for i in (0, 1)]
                for o in range(2):
                    y = sum(w * s for w, s in zip(b[o].tolist(), waves)) + float(c[o])
                    assert out[0, h, n, o].item() == pytest.approx(max(y, 0), abs=1e-12)


@pytest.mark.parametrize(
    'change, message',
    [
        (dict(q=(3, 7, 8)), r'q must have shape \(B, heads, N, d\), got \(3, 7, 8\)'),
        (
            dict(k=(1, 2, 7, 6)),
            r'k must have the dtype of q and its shape .* got torch.float32 \(1, 2, 7, 6\)',
        ),
        (dict(w1=(4, 9)), r'frequencies must have shape \(4, 8\) .* got \(4, 9\)'),
        (dict(w1=(3, 4, 8)), r'frequencies must have shape \(2, 4, 8\) .* got \(3, 4, 8\)'),
        (dict(w1=(8,)), r'frequencies must have shape \(8,\)|frequencies'),
        (dict(w2=(4, 4)), r'weight must have shape \(4, 8\) .* got \(4, 4\)'),
        (dict(b2=(2, 4)), r'bias must have shape \(4,\) .* got \(2, 4\)'),
    ],
)
def test_bad_shapes_are_named(change, message):
    shapes = dict(q=(1, 2, 7, 8), k=(1, 2, 7, 8), w1=(4, 8), w2=(4, 8), b2=(4,))
    with pytest.raises(ValueError, match=message):
        adaptive_features(*(torch.randn(shape) for shape in {**shapes, **change}.values()))
    with pytest.raises(ValueError, match=r'bias must be floats on .* got torch\.int64'):
        tensors = [torch.randn(shape) for shape in list(shapes.values())[:-1]]
        adaptive_features(*tensors, torch.zeros(4, dtype=torch.int64))


@needs_kernels
@pytest.mark.parametrize(
    'b, h, n, d, dtype, kind, per_head',
    [
        (2, 3, 77, 20, torch.float32, torch.float32, True),
        (1, 1, 1, 16, torch.float32, torch.float32, False),
        (2, 2, 150, 32, torch.bfloat16, torch.float32, False),
        (1, 2, 70, 64, torch.bfloat16, torch.bfloat16, True),
        (2, 1, 143, 24, torch.float16, torch.float32, False),
    ],
)
def test_kernels(b, h, n, d, dtype, kind, per_head):
    """Outputs and all gradients, over several chunks that are not full. A feature that rounding
    moves over the ReLU's edge has another gradient: the kernel's own edge counts."""
    x = torch.randn(b, n, 3, h, d, device=DEVICE).to(dtype).requires_grad_()
    learnt = parameters(d, d, h if per_head else None, kind)
    q, k, _ = x.permute(2, 0, 3, 1, 4)
    out = adaptive_features(q, k, *learnt, backend='triton')
    assert {t.dtype for t in out} == {dtype}
    grad = torch.randn(2, b, h, n, d, device=DEVICE).to(dtype)
    got = torch.autograd.grad(out, [x, *learnt], grad.unbind())
    assert [t.dtype for t in got] == [dtype, kind, kind, kind]
    leaves = [t.detach().double().requires_grad_() for t in (x, *learnt)]
    exact = [before_relu(t, *leaves[1:]) for t in leaves[0].permute(2, 0, 3, 1, 4)[:2]]
    inside = [g.double() * (o > 0) for g, o in zip(grad, out)]
    expected = torch.autograd.grad(exact, leaves, inside)
    # Saved tensors that come back with other strides, as from save_on_cpu(pin_memory=True).
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.contiguous(), lambda t: t):
        out = adaptive_features(*x.permute(2, 0, 3, 1, 4)[:2], *learnt, backend='triton')
    for a, e in zip(torch.autograd.grad(out, [x, *learnt], grad.unbind()), got):
        assert torch.equal(a, e)
    limit = max(TOLERANCE[dtype], TOLERANCE[kind])
    for i, (a, e) in enumerate([*zip(out, (t.relu() for t in exact)), *zip(got, expected)]):
        error = ((a.double() - e).norm() / e.norm()).item()
        assert error < limit, (i, error)


@needs_kernels
def test_sines_of_large_numbers():
    """float32 to its own digits: a phase of 1000 is known to 3e-5."""
    w1, w2, b2 = parameters(16, 16)
    with torch.no_grad():
        w1.copy_(torch.eye(16)), b2.zero_()
        w2.copy_(torch.cat([torch.eye(16), torch.zeros(16, 16)], 1))
        for scale in (1.0, 1e3, 1e6, 1e9):
            q = scale * torch.randn(1, 1, 40, 16, device=DEVICE)
            out = adaptive_features(q, q, w1, w2, b2, backend='triton')[0]
            exact = q.double().sin().relu()
            # In float32 phases are one number here, whatever W1 is split into.
            limit = 1e-6 if scale < 1e6 else 2.0
            assert (out - exact).abs().max() < limit
            assert out.min() >= 0 and out.max() < 1 + 1e-6


@needs_kernels
def test_what_is_no_number_stays_seen():
    """A loss scaler looks for it in the gradients."""
    learnt = parameters(16, 16)
    q = torch.randn(1, 1, 3, 16, device=DEVICE)
    q[0, 0, 1, 2] = torch.nan
    k = torch.randn(1, 1, 3, 16, device=DEVICE).requires_grad_()
    out, of_k = adaptive_features(q, k, *learnt, backend='triton')
    assert out[0, 0, 1].isnan().all() and out[0, 0, ::2].isfinite().all()
    grad = torch.ones_like(of_k)
    grad[0, 0, 0] = torch.inf
    (dk,) = torch.autograd.grad(of_k, k, grad)
    assert not dk[0, 0, 0].isfinite().any() and dk[0, 0, 1:].isfinite().all()


@needs_kernels
def test_a_layer_trains_by_the_kernels_as_without():
    x = torch.randn(2, 2, 2, 40, 16, device=DEVICE)
    feature_map = build_feature_map('AdaptiveFeatures', 16, 2).to(DEVICE)
    grads = {}
    for backend in ('torch', 'triton'):
        feature_map.zero_grad()
        with use_backend(backend):
            q, k = feature_map(*x)
        (q * k.flip(2)).sum().backward()
        grads[backend] = [p.grad.clone() for p in feature_map.parameters()]
    assert len(grads['triton']) == 3
    torch.testing.assert_close(grads['triton'], grads['torch'], rtol=1e-4, atol=1e-4)
    assert not all(map(torch.equal, *grads.values()))  # the kernels did it


@needs_kernels
@pytest.mark.parametrize(
    'd, m, message',
    [(16, 20, 'as many features as channels .16., got 20'), (96, 96, 'at most 64 .* got 96'),
     (8, 8, 'head dims 16 to 128, got 8')],
)  # fmt: skip
def test_kernels_say_what_they_cannot(d, m, message):
    q, k = torch.randn(2, 1, 1, 5, d, device=DEVICE)
    with pytest.raises(BackendError, match=f'adaptive_features: .*{message}'):
        adaptive_features(q, k, *parameters(d, m), backend='triton')


@needs_kernels
def test_compiled_code_that_uses_one_of_both():
    q, k = torch.randn(2, 1, 1, 20, 16, device=DEVICE).requires_grad_().unbind()
    learnt = parameters(16, 16)

    def features_of_k(q, k):
        return adaptive_features(q, k, *learnt, backend='triton')[1]

    compiled = torch.compile(features_of_k, fullgraph=True, backend='aot_eager')
    ours, theirs = (torch.autograd.grad(f(q, k).sum(), (q, k)) for f in (compiled, features_of_k))
    torch.testing.assert_close(ours, theirs)


@needs_kernels
def test_kernels_need_as_many_keys_as_queries_and_no_float64():
    q, learnt = torch.randn(1, 1, 5, 16, device=DEVICE), parameters(16, 16)
    with pytest.raises(BackendError, match='different numbers of queries and keys'):
        adaptive_features(q, q[:, :, 1:], *learnt, backend='triton')
    with pytest.raises(BackendError, match='got float64 parameters'):
        adaptive_features(q, q, *(x.double() for x in learnt), backend='triton')


def test_a_layer_whose_output_is_wrapped_calls_it():
    feature_map = build_feature_map('AdaptiveFeatures', 8, 2)
    x = torch.randn(1, 2, 3, 8)
    expected = feature_map(x, x)[0]
    seen = []
    feature_map.output_layer.register_forward_hook(lambda *a: seen.append(a[2].shape))
    torch.testing.assert_close(feature_map(x, x)[0], expected)
    assert seen == [(1, 2, 3, 8)] * 2
