"""Torch forms in half precision, on the CPU and as on an accelerator, against float64."""

import pytest
import torch

from mmlinattn.ops import additive_attention, linear_attention, mala_attention, rala_attention
from mmlinattn.ops.common import numerics
from tests.test_ops.operators import OPERATORS, random_tensors

# Output and gradients, as benchmarks/cases/problems.py.
TOLERANCES = {torch.bfloat16: (1e-2, 3e-2), torch.float16: (1e-3, 4e-3)}
HEADS = 2


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


def check(
    name, hw, dim, dtype, mask=None, reference='torch', mixed=True, scale=1.0, batch=2, common=0.0
):
    run, others = OPERATORS[name]
    q, k, v = torch.randn(3, batch, hw[0] * hw[1], HEADS, dim).transpose(2, 3).to(dtype)
    tensors = q, k, v + common, *random_tensors(others, q)
    cotangent = (scale * torch.randn(q.shape)).to(dtype)
    results = []
    for kind, backend in ((dtype, 'torch'), (torch.float64, reference)):
        leaves = [x.to(kind).requires_grad_() for x in tensors]
        out = run(hw, *leaves, key_padding_mask=mask, backend=backend)
        assert out.dtype == kind
        results.append([out, *torch.autograd.grad(out, leaves, cotangent.to(kind))])
    for i, (found, exact) in enumerate(zip(*results)):
        error = (found.double() - exact).norm() / exact.norm()
        assert error <= TOLERANCES[dtype][mixed and i > 0], (i, float(error))


@pytest.mark.parametrize('name', OPERATORS)
@pytest.mark.parametrize('dtype', TOLERANCES, ids=str)
@pytest.mark.parametrize('padding', [False, True])
@pytest.mark.parametrize('chunk', [1, numerics.CPU_CHUNK])
@pytest.mark.parametrize('mixed', [False, True])
def test_against_float64(name, dtype, padding, chunk, mixed, request, monkeypatch):
    monkeypatch.setattr(numerics, 'CPU_CHUNK', chunk)  # many chunks, and one
    products = request.getfixturevalue('products') if mixed else []
    for hw, dim in (((9, 11), 32), ((5, 13), 8), ((1, 130), 20)):
        mask = torch.zeros(2, hw[0] * hw[1], dtype=torch.bool)
        mask[0, hw[1] :] = mask[1, : hw[1] // 2] = True
        check(name, hw, dim, dtype, mask if padding else None, 'reference', mixed)
    assert set(products) == ({dtype} if mixed else set())


@pytest.mark.parametrize('dtype', TOLERANCES, ids=str)
@pytest.mark.parametrize('name', [name for name in OPERATORS if name.startswith('linear')])
def test_gradients_of_queries_survive_what_values_have_in_common(name, dtype, products):
    check(name, (24, 24), 32, dtype, common=4.0)


@pytest.mark.parametrize('name', OPERATORS)
def test_many_tokens_stay_in_the_range_of_float16(name, products):
    check(name, (256, 257), 16, torch.float16, scale=64.0, batch=1)


@pytest.mark.parametrize('name', OPERATORS)
@pytest.mark.parametrize('dtype', TOLERANCES, ids=str)
def test_an_image_of_padding_has_finite_gradients(name, dtype, products):
    run, others = OPERATORS[name]
    q, k, v = torch.randn(3, 2, HEADS, 12, 8, dtype=dtype)
    leaves = [x.requires_grad_() for x in (q, k, v, *random_tensors(others, q))]
    mask = torch.tensor([[True] * 12, [False] * 12])
    out = run((3, 4), *leaves, key_padding_mask=mask, backend='torch')
    assert not out[0].any()
    for grad in torch.autograd.grad(out.sum(), leaves):
        assert grad.isfinite().all()


@pytest.mark.parametrize(
    'operator, size, draw',
    [(linear_attention, 30, torch.rand), (rala_attention, 30, torch.randn),
     (mala_attention, 10, torch.randn), (additive_attention, 1, torch.randn)],
)  # fmt: skip
@pytest.mark.parametrize('dtype, tolerance', [(torch.float16, 3e-3), (torch.bfloat16, 1e-2)])
def test_many_large_tokens(operator, size, draw, dtype, tolerance):
    """Sums in half precision would overflow or stall; the output of MALA grows with its queries."""
    tensors = [*size * draw(3, 1, 2, 16384, 16)]
    if operator is additive_attention:
        tensors += 10 * torch.randn(2, 2, 16)
    tensors = [x.to(dtype) for x in tensors]
    exact = operator(*(x.double() for x in tensors), backend='torch')
    for autocast in (False, True):
        with torch.autocast('cpu', dtype=torch.bfloat16, enabled=autocast):
            out = operator(*tensors, backend='torch')
        assert out.dtype == dtype
        assert (out.double() - exact).norm() / exact.norm() < tolerance


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
