"""Torch forms with half factors and float32 sums, as on an accelerator, against float64."""

import pytest
import torch

from mmlinattn.ops import (
    Rotary,
    additive_attention,
    linear_attention,
    mala_attention,
    nystrom_attention,
    rala_attention,
    random_walk_attention,
)
from mmlinattn.ops.common import numerics

# Output and gradients, as benchmarks/cases/problems.py.
TOLERANCES = {torch.bfloat16: (1e-2, 3e-2), torch.float16: (1e-3, 4e-3)}
HEADS = 2


def linear(feature_map, **options):
    def run(hw, q, k, v, **call):
        q, k = (q.exp(), k.exp()) if feature_map == 'identity' else (q, k)
        return linear_attention(q, k, v, feature_map=feature_map, **options, **call)

    return run


def turned(operator, **options):
    def run(hw, q, k, v, *rest, **call):
        given = dict(options, token_weights=rest[0].abs()) if rest else options
        return operator(q, k, v, rotary=Rotary(hw, q.shape[-1]), **given, **call)

    return run


def walk(**options):
    return lambda hw, *tensors, **call: random_walk_attention(*tensors, **options, **call)


# Operator, shapes of its tensors besides q, k, v for N tokens of width d.
OPERATORS = {
    'linear': (linear('elu+1'), lambda n, d: ()),
    'linear, identity': (linear('identity', mean_normaliser=True), lambda n, d: ()),
    'linear, relu': (linear('relu', eps=0.1), lambda n, d: ()),
    'linear, softmax': (linear('softmax'), lambda n, d: ()),
    'rala': (turned(rala_attention), lambda n, d: ()),
    'rala, given weights': (turned(rala_attention), lambda n, d: ((HEADS, n),)),
    'mala': (turned(mala_attention), lambda n, d: ()),
    'walk': (walk(decay=0.4), lambda n, d: ((HEADS, 6, d),) * 2),
    'one step': (walk(steps=1), lambda n, d: ((HEADS, 6, d),) * 2),
    'nystrom': (lambda hw, *x, **call: nystrom_attention(*x, **call),
                lambda n, d: ((HEADS, 5, d),) * 2),
    'additive': (lambda hw, *x, **call: additive_attention(*x, **call),
                 lambda n, d: ((HEADS, d),) * 2),
}  # fmt: skip


@pytest.fixture
def products(monkeypatch):
    """Compute on the CPU as an accelerator does; return the types of the factors."""
    types = []

    def mixed(a, b, out=None):
        assert a.dtype == b.dtype
        types.append(a.dtype)
        return torch.bmm(a.float(), b.float(), out=out)

    monkeypatch.setattr(numerics, 'sums_halves_in_float32', lambda x: True)
    monkeypatch.setattr(numerics, '_mixed_product', mixed)
    return types


def check(name, hw, dim, dtype, mask, scale=1.0, batch=2, common=0.0):
    run, others = OPERATORS[name]
    n = hw[0] * hw[1]
    q, k, v = torch.randn(3, batch, n, HEADS, dim).transpose(2, 3).to(dtype).unbind()
    qkv = q, k, v + common
    rest = [torch.randn(*shape).to(dtype) for shape in others(n, dim)]
    cotangent = (scale * torch.randn(qkv[0].shape)).to(dtype)
    results = []
    for kind, backend in ((dtype, 'torch'), (torch.float64, 'torch')):
        leaves = [x.to(kind).requires_grad_() for x in (*qkv, *rest)]
        out = run(hw, *leaves, key_padding_mask=mask, backend=backend)
        assert out.dtype == kind
        results.append([out, *torch.autograd.grad(out, leaves, cotangent.to(kind))])
    for i, (found, exact) in enumerate(zip(*results)):
        error = (found.double() - exact).norm() / exact.norm()
        assert error <= TOLERANCES[dtype][i > 0], (i, float(error))


@pytest.mark.parametrize('name', OPERATORS)
@pytest.mark.parametrize('dtype', TOLERANCES, ids=str)
@pytest.mark.parametrize('padding', [False, True])
@pytest.mark.parametrize('chunk', [1, numerics.CPU_CHUNK])
def test_against_float64(name, dtype, padding, chunk, products, monkeypatch):
    monkeypatch.setattr(numerics, 'CPU_CHUNK', chunk)  # many chunks, and one
    for hw, dim in (((9, 11), 32), ((5, 13), 8), ((1, 130), 20)):
        mask = torch.zeros(2, hw[0] * hw[1], dtype=torch.bool)
        mask[0, hw[1] :] = mask[1, : hw[1] // 2] = True
        check(name, hw, dim, dtype, mask if padding else None)
    assert set(products) == {dtype}


@pytest.mark.parametrize('dtype', TOLERANCES, ids=str)
@pytest.mark.parametrize('name', [name for name in OPERATORS if name.startswith('linear')])
def test_gradients_of_queries_survive_what_values_have_in_common(name, dtype, products):
    check(name, (24, 24), 32, dtype, None, common=4.0)


@pytest.mark.parametrize('name', OPERATORS)
def test_many_tokens_stay_in_the_range_of_float16(name, products):
    check(name, (256, 257), 16, torch.float16, None, scale=64.0, batch=1)


@pytest.mark.parametrize('name', OPERATORS)
@pytest.mark.parametrize('dtype', TOLERANCES, ids=str)
def test_an_image_of_padding_has_finite_gradients(name, dtype, products):
    run, others = OPERATORS[name]
    leaves = [torch.randn(2, HEADS, 12, 8).to(dtype).requires_grad_() for _ in range(3)]
    leaves += [torch.randn(*shape).to(dtype).requires_grad_() for shape in others(12, 8)]
    mask = torch.tensor([[True] * 12, [False] * 12])
    out = run((3, 4), *leaves, key_padding_mask=mask, backend='torch')
    assert not out[0].any()
    for grad in torch.autograd.grad(out.sum(), leaves):
        assert grad.isfinite().all()


def test_cpu_products_are_float32():
    x = torch.zeros(1, 1, 2, 2, dtype=torch.bfloat16)
    assert numerics.factor_dtype(x) is None
    assert numerics.factor_dtype(x.float()) is None
    assert not numerics._has_mixed_product(x.device, x.dtype, False)


@pytest.mark.parametrize('dtype', TOLERANCES, ids=str)
def test_large_batches_of_strided_heads_are_not_copied(dtype, products):
    a = torch.randn(2, 40000, 2, 32).transpose(1, 2).to(dtype)
    b = torch.randn(1, 2, 32, 3)
    found = numerics.product(a, b, dtype)
    torch.testing.assert_close(found, a.float() @ b.to(dtype).float())
    assert numerics.product(a, b, dtype, rounded=True).dtype == dtype
