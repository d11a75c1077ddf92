"""The linear layer against its definition in float64, by oneDNN wherever torch has that."""

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional as F

from mmlinattn.ops.common import matmul


@pytest.fixture
def by_onednn(monkeypatch):
    """oneDNN for products of all sizes; returns the shapes that came to it."""
    if not hasattr(torch.ops.mkldnn, '_linear_pointwise'):
        pytest.skip('this torch was built without oneDNN')
    calls = []
    product = matmul._product

    def spy(x, weight, bias):
        calls.append((tuple(x.shape), tuple(weight.shape)))
        return product(x, weight, bias)

    monkeypatch.setattr(matmul, 'ONEDNN_IS_FASTER', True)
    monkeypatch.setattr(matmul, 'LEAST', 1)
    monkeypatch.setattr(matmul, '_product', spy)
    return calls


CASES = {
    'tokens': lambda: (torch.randn(2, 77, 24), torch.randn(40, 24)),
    'matrix': lambda: (torch.randn(5, 3), torch.randn(7, 3)),
    'one number': lambda: (torch.randn(1, 1, 1), torch.randn(1, 1)),
    'strided': lambda: (torch.randn(2, 9, 50, 48)[:, ::2, 3:, ::2], torch.randn(48, 30)[::2].t()),
    'expanded': lambda: (torch.randn(1, 20, 16).expand(3, -1, -1), torch.randn(8, 1).expand(8, 16)),
    'part of a projection': lambda: (torch.randn(2, 30, 16), torch.randn(48, 16)[16:32]),
}


@pytest.mark.parametrize('with_bias', [True, False])
@pytest.mark.parametrize('case', CASES)
def test_outputs_and_gradients(by_onednn, case, with_bias):
    x, weight = (t.requires_grad_() for t in CASES[case]())
    leaves = [x, weight, torch.randn(weight.shape[0], requires_grad=True)][: 2 + with_bias]
    exact = [t.detach().double().requires_grad_() for t in leaves]
    out = matmul.linear(*leaves)
    expected = exact[0] @ exact[1].T + (exact[2] if with_bias else 0)
    grad = torch.randn(out.shape)
    pairs = [(out, expected)]
    pairs += zip(
        torch.autograd.grad(out, leaves, grad), torch.autograd.grad(expected, exact, grad.double())
    )
    assert len(by_onednn) == 3
    for got, wanted in pairs:
        assert (got.double() - wanted).norm() < 1e-6 * wanted.norm()


@pytest.mark.parametrize('outputs', [8, 40])
def test_no_second_factor_is_a_part_of_wider_rows(by_onednn, monkeypatch, outputs):
    """oneDNN takes such a one number by number."""
    seen, product = [], matmul._product
    monkeypatch.setattr(matmul, '_product', lambda x, w, b: seen.append(w) or product(x, w, b))
    x = torch.randn(50, 3 * 24)[:, :24].requires_grad_()
    weight = torch.randn(outputs, 24, requires_grad=True)
    grad = torch.randn(50, 3 * outputs)[:, :outputs]
    torch.autograd.grad(matmul.linear(x, weight), (x, weight), grad)
    assert len(seen) == 3 and all(w.is_contiguous() or w.t().is_contiguous() for w in seen)


def test_second_derivatives(by_onednn):
    leaves = [torch.randn(6, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)]

    def penalty(function, x, weight):
        (grad,) = torch.autograd.grad((function(x, weight) ** 3).sum(), x, create_graph=True)
        return torch.autograd.grad((grad**2).sum(), (x, weight))

    got = penalty(matmul.linear, *leaves)
    expected = penalty(F.linear, *(t.detach().double().requires_grad_() for t in leaves))
    assert by_onednn
    for a, b in zip(got, expected):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-4)


def test_only_what_needs_a_gradient_gets_one(by_onednn):
    x, weight = torch.randn(6, 4), torch.randn(5, 4, requires_grad=True)
    matmul.linear(x, weight).sum().backward()
    assert x.grad is None and weight.grad is not None
    assert len(by_onednn) == 2
    with torch.no_grad():
        assert not matmul.linear(x, weight).requires_grad


class Layer(nn.Linear):
    def forward(self, x):
        return matmul.linear(x, self.weight, self.bias)


def test_what_torch_does_itself(by_onednn):
    """Other types, autocast, transforms, a compiler, and oneDNN switched off."""
    layer, x = Layer(8, 6), torch.randn(3, 5, 8)
    with torch.autocast('cpu', torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
    with torch.backends.mkldnn.flags(enabled=False):
        plain = layer(x)
    jacobian = torch.func.vmap(torch.func.jacrev(layer))(x)
    assert torch.equal(jacobian[0, 0, :, 0, :], layer.weight)
    compiled = torch.compile(layer, fullgraph=True, backend='eager')(x)
    doubled = Layer(8, 6).double()(x.double())
    empty, vector = layer(x[:, :0]), layer(x[0, 0])
    assert by_onednn == []
    assert doubled.dtype == torch.float64 and empty.shape == (3, 0, 6)
    assert torch.equal(compiled, plain)
    torch.testing.assert_close(vector, plain[0, 0])
    with pytest.raises(RuntimeError, match='shapes cannot be multiplied'):
        layer(x[..., :-1])


def test_derivatives_taken_forwards(by_onednn):
    weight, x, way = torch.randn(6, 8), torch.randn(5, 8), torch.randn(5, 8)
    with forward_ad.dual_level():
        out = matmul.linear(forward_ad.make_dual(x, way), weight)
        tangent = forward_ad.unpack_dual(out).tangent
    torch.testing.assert_close(tangent, way @ weight.T)


def test_weights_with_a_product_of_their_own(by_onednn):
    class Doubled(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            plain = [a.as_subclass(torch.Tensor) if isinstance(a, cls) else a for a in args]
            out = function(*plain, **(kwargs or {}))
            return 2 * out if function is F.linear else out

    x, weight = torch.randn(5, 8), torch.randn(6, 8)
    out = matmul.linear(x, weight.as_subclass(Doubled))
    torch.testing.assert_close(out, 2 * x @ weight.T)
    assert by_onednn == []


def test_processors(monkeypatch, tmp_path):
    info = tmp_path / 'cpuinfo'
    monkeypatch.setattr(matmul, 'CPU_INFO', info)
    monkeypatch.setattr(torch.backends.cpu, 'get_cpu_capability', lambda: 'AVX512')
    monkeypatch.setattr(torch.backends.mkl, 'is_available', lambda: True)
    monkeypatch.setattr(torch.backends.mkldnn, 'is_available', lambda: True)
    assert not matmul._onednn_is_faster()  # not Linux
    info.write_text('vendor_id : GenuineIntel\n')
    assert not matmul._onednn_is_faster()
    info.write_text('vendor_id : AuthenticAMD\n')
    assert matmul._onednn_is_faster() == hasattr(torch.ops.mkldnn, '_linear_pointwise')
    monkeypatch.setattr(torch.backends.cpu, 'get_cpu_capability', lambda: 'AVX2')
    assert not matmul._onednn_is_faster()
