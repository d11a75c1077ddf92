import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmlinattn.ops import (
    ripple_attention,
    stick_breaking,
    use_backend,
)
from mmlinattn.ops.common import dispatch, numerics
from mmlinattn.ops.ripple import choose_algorithm
from mmlinattn.ops.ripple.groups import RippleOptions
from mmlinattn.ops.ripple.reference import ripple_reference
from mmlinattn.ops.ripple.rows import ripple_rows
from mmlinattn.ops.ripple.tile import ripple_tile


def case(hw, max_distance, batch=1, heads=2, features=4, dims=3, dtype=torch.float64):
    """Queries, keys, values and weights of a random case."""
    shape = (batch, heads, hw[0] * hw[1])
    q, k = torch.rand(2, *shape, features, dtype=dtype) + 0.05
    v = torch.randn(*shape, dims, dtype=dtype)
    return q, k, v, torch.rand(*shape, max_distance + 1, dtype=dtype) + 0.05


def with_gradients(inputs, cotangent, **options):
    inputs = [x.clone().requires_grad_() for x in inputs]
    out = ripple_attention(*inputs, **options)
    return [out, *torch.autograd.grad(out, inputs, cotangent)]


@settings(max_examples=40, deadline=None)
@given(
    hw=st.one_of(
        st.tuples(st.integers(1, 11), st.integers(1, 20)),
        st.tuples(st.just(1), st.integers(1, 30)),
        st.tuples(st.integers(1, 30), st.just(1)),
    ),
    max_distance=st.integers(0, 12), batch=st.integers(1, 2), heads=st.integers(1, 2),
    groups=st.sampled_from(['chebyshev', 'log']), masked=st.booleans(), seed=st.integers(0, 99),
    chunk=st.sampled_from([1, 2**11, 2**18]), features=st.integers(1, 5), dims=st.integers(1, 5),
)  # fmt: skip
def test_all_algorithms_agree_with_gradients(
    hw, max_distance, batch, heads, groups, masked, seed, chunk, features, dims
):
    torch.manual_seed(seed)
    inputs = case(hw, max_distance, batch, heads, features, dims)
    mask = torch.rand(batch, hw[0] * hw[1]) < 0.4 if masked else None
    cotangent = torch.randn_like(inputs[2])
    options = dict(hw_shape=hw, groups=groups, key_padding_mask=mask)
    expected = with_gradients(inputs, cotangent, **options, backend='reference')
    # Whole heads in a chunk, and chunks of a few columns of tiles.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numerics, 'CPU_TILES', chunk)
        for algorithm in ('sat', 'tile') if groups == 'chebyshev' else ('sat',):
            results = with_gradients(inputs, cotangent, **options, backend=algorithm)
            for result, reference in zip(results, expected):  # out, then gradients of q, k, v, w
                torch.testing.assert_close(result, reference, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize('algorithm', ['sat', 'tile'])
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16, torch.float32])
def test_logits_break_in_float32(algorithm, dtype):
    q, k, v, _ = (x.to(dtype) for x in case((4, 5), 1))
    logits = (3 * torch.randn(1, 2, 20, 4)).to(dtype).requires_grad_()
    exact = stick_breaking(logits.float())
    single = (x.float() for x in (q, k, v))
    expected = ripple_attention(*single, exact, hw_shape=(4, 5), backend='tile')
    with torch.autocast('cpu', dtype=torch.bfloat16):
        weights = stick_breaking(logits)
        assert weights.dtype == torch.float32
        out = ripple_attention(q, k, v, weights, hw_shape=(4, 5), backend=algorithm)
    assert out.dtype == dtype
    torch.testing.assert_close(out, expected.to(dtype), rtol=1e-5, atol=1e-5)
    (grad,) = torch.autograd.grad(out.float().square().sum(), logits)
    assert grad.dtype == dtype and torch.isfinite(grad).all()


@pytest.mark.parametrize('algorithm', ['sat', 'tile'])
def test_a_window_without_keys_yields_zero(algorithm):
    # Truncated weights see no key beyond the window, and all keys of the window are padded.
    q, k, v, weights = (x.requires_grad_() for x in case((1, 8), 2))
    mask = torch.tensor([[True] * 4 + [False] * 4])
    local = torch.nn.functional.pad(weights[..., :-1], (0, 1))
    out = ripple_attention(
        q, k, v, local, hw_shape=(1, 8), key_padding_mask=mask, backend=algorithm
    )
    assert out[:, :, :2].abs().max() < 1e-6 and (out[:, :, 4:] != 0).all()
    out.sum().backward()
    assert all(torch.isfinite(x.grad).all() for x in (q, k, v, weights))


@pytest.mark.parametrize('algorithm', ['tile', 'sat'])
def test_float32_is_close_to_float64(algorithm):
    hw = (48, 40)
    q, k, v, _ = case(hw, 4, features=16, dims=16)
    logits = 4 + torch.randn(1, 2, 48 * 40, 4, dtype=torch.float64)  # near rings weigh most
    weights = stick_breaking(logits, offset=False)
    exact = ripple_attention(q, k, v, weights, hw_shape=hw, backend='tile')
    out = ripple_attention(*(x.float() for x in (q, k, v, weights)), hw_shape=hw, backend=algorithm)
    assert (out - exact).abs().max() / exact.abs().max() < 1e-6


@pytest.mark.parametrize('algorithm', ['sat', 'tile'])
@pytest.mark.parametrize('dtype, tolerance', [(torch.float16, 2e-3), (torch.bfloat16, 2e-2)])
def test_half_precision_computes_in_float32(algorithm, dtype, tolerance):
    hw = (20, 24)
    q, k, v, weights = (x.to(dtype) for x in case(hw, 3, features=16, dims=16))
    q, k = 30 * q, 30 * k
    exact = ripple_attention(*(x.double() for x in (q, k, v, weights)), hw_shape=hw, backend='tile')
    for autocast in (False, True):
        inputs = [x.clone().requires_grad_() for x in (q, k, v, weights)]
        with torch.autocast('cpu', dtype=torch.bfloat16, enabled=autocast):
            out = ripple_attention(*inputs, hw_shape=hw, backend=algorithm)
            out.float().square().sum().backward()
        assert out.dtype == dtype and all(x.grad.dtype == dtype for x in inputs)
        assert (out.double() - exact).norm() / exact.norm() < tolerance


def test_auto_chooses_by_distance_features_map_and_groups():
    assert choose_algorithm(4, 32, (128, 128), 'chebyshev') == 'tile'
    assert choose_algorithm(4, 32, (128, 128), 'log') == 'sat'
    assert choose_algorithm(60, 32, (128, 128), 'chebyshev') == 'sat'
    assert choose_algorithm(60, 32, (14, 14), 'chebyshev') == 'tile'


def test_a_named_backend_runs_under_any_default_backend():
    q, k, v, weights = case((2, 3), 1)
    q = -q
    for default in ('auto', 'reference', 'torch'):
        with use_backend(default):
            ripple_attention(q, k, v, weights, hw_shape=(2, 3), backend='tile')  # takes any sign
            with pytest.raises(ValueError, match='q must be feature-mapped .* minimum is -'):
                ripple_attention(q, k, v, weights, hw_shape=(2, 3), backend='reference')


@pytest.mark.parametrize(
    'change, error, message',
    [
        (dict(k=torch.rand(1, 2, 5, 8)), ValueError, r'k has shape \(1, 2, 5, 8\)'),
        (dict(v=torch.rand(1, 6, 8)), ValueError, r'v must have shape'),
        (dict(weights=torch.rand(1, 2, 5, 3)), ValueError, r'weights .* got \(1, 2, 5, 3\)'),
        (dict(weights=torch.rand(1, 2, 6, 0)), ValueError, r'R >= 0, got \(1, 2, 6, 0\)'),
        (dict(weights=torch.ones(1, 2, 6, 3).long()), ValueError, 'weights .* torch.int64'),
        (
            dict(hw_shape=(2, 4)),
            ValueError,
            r'hw_shape=\(2, 4\) has 8 positions but q has 6 tokens',
        ),
        (dict(groups='square'), ValueError, "groups .*'square'"),
        (dict(backend='fast'), ValueError, r"backend .*'tile', 'sat'.*\), got 'fast'"),
        (dict(groups='log', backend='tile'), ValueError, "'tile' needs groups='chebyshev'"),
        (dict(key_padding_mask=torch.zeros(1, 6)), TypeError, 'must be bool'),
        (dict(backend='quick'), ValueError, "'quick'"),
    ],
)
def test_bad_input_names_argument_and_value(change, error, message):
    q, k, v = torch.rand(3, 1, 2, 6, 8)
    given = dict(q=q, k=k, v=v, weights=torch.rand(1, 2, 6, 3), hw_shape=(2, 3))
    with pytest.raises(error, match=message):
        ripple_attention(**{**given, **change})


@pytest.mark.parametrize('offset', [True, False])
def test_stick_breaking_by_hand(offset):
    logits = torch.randn(5, 3, dtype=torch.float64)
    weights = stick_breaking(logits, offset=offset)
    for row, out in zip(logits.tolist(), weights.tolist()):
        left, expected = 1.0, []
        for r, logit in enumerate(row, start=1):
            part = 1 / (1 + (3 - r + 1 if offset else 1) * math.exp(-logit))
            expected.append(left * part)
            left *= 1 - part
        assert out == pytest.approx([*expected, left], rel=1e-12)


def test_extreme_logits_stay_on_the_simplex():
    logits = torch.tensor([[1e4, 0.0], [-1e4, -1e4], [300.0, 300.0]]).requires_grad_()
    for threshold in (None, 1e-3):
        weights = stick_breaking(logits, threshold=threshold)
        torch.testing.assert_close(weights.sum(-1), torch.ones(3))
        (grad,) = torch.autograd.grad(weights[:, 0].sum(), logits)
        assert torch.isfinite(grad).all()


def test_threshold_shares_what_is_left():
    logits = torch.tensor([[3.0, 3.0, 0.0, 1.0], [-3.0, -3.0, -3.0, -3.0]], dtype=torch.float64)
    plain = stick_breaking(logits, offset=False)
    merged = stick_breaking(logits, offset=False, threshold=0.01)
    # 0.047 of the stick is left after one group of the first row, 0.002 after two.
    left = 1 - plain[0, :2].sum()
    torch.testing.assert_close(merged[0, :2], plain[0, :2])
    torch.testing.assert_close(merged[0, 2:], (left / 3).expand(3))
    torch.testing.assert_close(merged[1], plain[1])
    torch.testing.assert_close(merged.sum(-1), torch.ones(2, dtype=torch.float64))


def test_stick_breaking_of_half_types_and_no_unit():
    logits = torch.randn(4, 3)
    torch.testing.assert_close(
        stick_breaking(logits.half()), stick_breaking(logits), rtol=0, atol=2e-3
    )
    assert stick_breaking(logits.half()).dtype == torch.float32
    assert (stick_breaking(torch.zeros(4, 0), threshold=0.5) == 1).all()


@pytest.mark.parametrize(
    'logits, kwargs, message',
    [
        (torch.tensor(0.0), {}, r'logits .*\(\)'),
        (torch.zeros(3).long(), {}, 'torch.int64'),
        (torch.zeros(3), dict(threshold=-0.1), 'threshold .* -0.1'),
        (torch.zeros(3), dict(threshold=2), 'threshold .* 2'),
    ],
)
def test_stick_breaking_of_bad_input(logits, kwargs, message):
    with pytest.raises(ValueError, match=message):
        stick_breaking(logits, **kwargs)


@pytest.mark.parametrize('form', ['tile', 'sat', 'triton'])
@pytest.mark.parametrize(
    'hw, max_distance, real',
    [
        ((4, 4), 8, None),  # no token has one that far away
        ((7, 7), 4, None),  # only those in the middle have none
        ((12, 12), 4, (3, 3)),  # the rest is padding
        ((6, 2), 2, (2, 2)),
    ],
)
def test_an_empty_last_group_costs_no_digits(form, hw, max_distance, real):
    """Nearly all weight is on the last group, which is empty: the rest decides."""
    n = hw[0] * hw[1]
    q, k, v = (torch.rand(1, 2, n, 16).requires_grad_() for _ in range(3))
    weights = stick_breaking(torch.full((1, 2, n, max_distance), -10.0)).requires_grad_()
    mask = None
    if real is not None:
        mask = torch.ones(hw, dtype=torch.bool)
        mask[2 % hw[0] : 2 % hw[0] + real[0], : real[1]] = False
        mask = mask.flatten()[None]
    if form == 'triton' and dispatch.TRITON_PROBLEM:
        pytest.skip(dispatch.TRITON_PROBLEM)
    how = dict(backend=form)
    cotangent, results = torch.randn(1, 2, n, 16), []
    for dtype, options in ((torch.float32, how), (torch.float64, dict(backend='reference'))):
        leaves = [x.detach().to(dtype).requires_grad_() for x in (q, k, v, weights)]
        out = ripple_attention(*leaves, hw_shape=hw, key_padding_mask=mask, eps=1e-12, **options)
        if mask is not None:  # padded queries read nothing of use
            out = out.masked_fill(mask[:, None, :, None], 0)
        results.append([out, *torch.autograd.grad(out, leaves, cotangent.to(dtype))])
    for name, single, double in zip(('out', 'q', 'k', 'v', 'weights'), *results):
        error = (single.double() - double).norm() / double.norm()
        assert error < 1e-4, (name, error)


@pytest.mark.parametrize('hw', [(1, 1), (5, 19), (17, 3), (8, 16)])
@pytest.mark.parametrize('groups, max_distance', [('chebyshev', 0), ('chebyshev', 4), ('log', 3)])
@pytest.mark.parametrize('padded', [False, True])
def test_plain_operations_for_exports(hw, groups, max_distance, padded):
    inputs = case(hw, max_distance, batch=2)
    mask = torch.rand(2, hw[0] * hw[1]) < 0.4 if padded else None
    options = RippleOptions(hw, groups, mask, 1e-6)
    torch.testing.assert_close(ripple_rows(*inputs, options), ripple_reference(*inputs, options))


def test_plain_operations_keep_their_digits_on_large_maps():
    inputs = case((128, 128), 4, heads=1, dtype=torch.float32)
    options = RippleOptions((128, 128), 'chebyshev', None, 1e-6)
    exact = ripple_tile(*(x.double() for x in inputs), options)
    torch.testing.assert_close(ripple_rows(*inputs, options).double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('algorithm', ['auto', 'tile', 'sat'])
def test_transforms_of_torch_func(algorithm):
    q, k, v = torch.rand(3, 2, 2, 20, 4, dtype=torch.float64)
    weights = stick_breaking(torch.randn(2, 2, 20, 2, dtype=torch.float64))

    def run(q, backend=algorithm):
        return ripple_attention(q, k, v, weights, hw_shape=(4, 5), backend=backend)

    def loss(q, backend=algorithm):
        return run(q, backend).square().sum()

    for found, expected in (
        (torch.func.grad(loss)(q), torch.func.grad(loss)(q, 'reference')),
        (
            torch.func.jvp(run, (q,), (v,)),
            torch.func.jvp(lambda q: run(q, 'reference'), (q,), (v,)),
        ),
        (torch.func.vmap(run)(torch.stack([q, 2 * q])), torch.stack([run(q), run(2 * q)])),
    ):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_a_compiled_call_takes_a_second_size(needs_to_compile):
    """Of which torch.compile makes a symbol, with which the plan of the tiles took it minutes."""
    needs_to_compile('ripple attention')
    torch.compiler.reset()
    compiled = torch.compile(ripple_attention, fullgraph=True, backend='eager')
    for height, width in ((6, 5), (7, 5), (4, 9)):
        q, k, v = torch.rand(3, 1, 2, height * width, 4).requires_grad_()
        options = dict(weights=torch.rand(1, 2, height * width, 3), hw_shape=(height, width))
        found, expected = (f(q, k, v, **options) for f in (compiled, ripple_attention))
        torch.testing.assert_close(found, expected)
