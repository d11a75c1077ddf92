"""Operators with N queries and M other keys, against their N x M weights in float64."""

from functools import partial

import pytest
import torch
from torch.nn.functional import elu

from mmlinattn.ops import (
    BackendError,
    Rotary,
    additive_attention,
    linear_attention,
    mala_attention,
    nystrom_attention,
    rala_attention,
    random_walk_attention,
    unnormalised_attention,
)
from mmlinattn.ops.common import dispatch, numerics
from mmlinattn.ops.learnt_features import adaptive_features

B, H, D = 2, 2, 16
ANCHORS = torch.randn(2, H, 5, D, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def phi(x):
    return elu(x) + 1


def real(padding, like):
    return torch.ones_like(like) if padding is None else (~padding).to(like)[:, None]


def linear_weights(q, k, padding, mean):
    weights = phi(q) @ phi(k).mT * real(padding, k[:, :, :, 0])[:, :, None]  # [B, H, N, M]
    eps = real(padding, k[:, :, :, 0]).sum(-1)[..., None, None] * 0.3 if mean else 0.3
    return weights / (weights.sum(-1, keepdim=True) + eps)


def rala_weights(q, k, padding):
    keep = real(padding, k[:, :, :, 0])  # [B, 1 or H, M]
    scores = (phi(q).mean(2, keepdim=True) @ phi(k).mT)[:, :, 0] / D**0.5
    alpha = scores.exp() * keep
    count = keep.sum(-1, keepdim=True)
    alpha = count * alpha / alpha.sum(-1, keepdim=True)
    weights = phi(q) @ phi(k).mT * alpha[:, :, None] / count[..., None]
    return weights / (weights.sum(-1, keepdim=True) + 0.3)


def mala_weights(q, k, padding):
    share = real(padding, k[:, :, :, 0])
    share = (share / share.sum(-1, keepdim=True))[:, :, None]  # [B, 1 or H, 1, M]
    similarity = phi(q) @ phi(k).mT / D**0.5
    z = (similarity * share).sum(-1, keepdim=True)
    return ((1 + 1 / (z + 0.3)) * similarity - z) * share


def walk_weights(q, k, padding, steps):
    a_q, a_k = ANCHORS
    logits = a_q @ k.mT
    if padding is not None:
        logits = logits.masked_fill(padding[:, None, None], -torch.inf)
    to_keys = logits.softmax(-1)  # [B, H, anchors, M]
    first = (q @ a_k.mT).softmax(-1) @ to_keys
    among_keys = (k @ a_k.mT).softmax(-1) @ to_keys
    if steps is None:
        rest = torch.linalg.inv(torch.eye(k.shape[2]).double() - 0.4 * among_keys)
        return 0.6 * first @ rest
    powers = [torch.linalg.matrix_power(0.4 * among_keys, i) for i in range(steps)]
    return 0.6 / (1 - 0.4**steps) * first @ sum(powers)


def additive(q, k, v, padding):
    def mean(x, w, mask):
        scores = (x * w[:, None]).sum(-1) / D**0.5
        scores = scores if mask is None else scores.masked_fill(mask[:, None], -torch.inf)
        return (scores.softmax(-1)[..., None] * x).sum(2, keepdim=True)

    w_q, w_k = ANCHORS[:, :, 0]
    return mean(mean(q, w_q, None) * k, w_k, padding) * v


def run_additive(q, k, v, **options):
    return additive_attention(q, k, v, *ANCHORS[:, :, 0].to(q.dtype), **options)


def run_walk(q, k, v, steps, **options):
    anchors = ANCHORS.to(q.dtype)
    return random_walk_attention(q, k, v, *anchors, decay=0.4, steps=steps, **options)


ELU = dict(feature_map='elu+1', eps=0.3)
linear = partial(linear_attention, **ELU)
mean_linear = partial(linear_attention, mean_normaliser=True, **ELU)
rala, mala = partial(rala_attention, **ELU), partial(mala_attention, **ELU)
CASES = {
    'linear': (linear, partial(linear_weights, mean=False)),
    'mean_linear': (mean_linear, partial(linear_weights, mean=True)),
    'rala': (rala, rala_weights),
    'mala': (mala, mala_weights),
    'walk': (partial(run_walk, steps=None), partial(walk_weights, steps=None)),
    'walk_3': (partial(run_walk, steps=3), partial(walk_weights, steps=3)),
    'walk_1': (partial(run_walk, steps=1), partial(walk_weights, steps=1)),
    'additive': (run_additive, None),
}


def tokens(n, m, dtype=torch.float64, values=None):
    sizes = n, m, values or m
    return [
        torch.randn(B, size, H, D, dtype=dtype).transpose(1, 2).requires_grad_() for size in sizes
    ]


@pytest.mark.parametrize('n, m', [(3, 7), (7, 7), (9, 1), (70, 150), (150, 70)])
@pytest.mark.parametrize('padded', [False, True])
@pytest.mark.parametrize('backend', ['reference', 'torch'])
@pytest.mark.parametrize('name', CASES)
def test_output_and_gradients(name, backend, padded, n, m, monkeypatch):
    if n + m > 200:  # several chunks of queries or keys
        monkeypatch.setattr(numerics, 'CPU_CHUNK', 1)
    operator, weights = CASES[name]
    leaves = tokens(n, m, values=n if name == 'additive' else m)
    padding = torch.zeros(B, m, dtype=torch.bool) if padded else None
    if padded:
        padding[1, m // 2 + 1 :] = True
    if weights is None:
        expected = additive(*leaves, padding)
    else:
        expected = weights(*leaves[:2], padding) @ leaves[2]
    grad = torch.randn_like(expected)
    out = operator(*leaves, key_padding_mask=padding, cross=True, backend=backend)
    assert out.shape == expected.shape
    torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-12)
    ours, theirs = (torch.autograd.grad(x, leaves, grad) for x in (out, expected))
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


@pytest.mark.skipif(dispatch.TRITON_PROBLEM is not None, reason=str(dispatch.TRITON_PROBLEM))
@pytest.mark.parametrize('name', ['linear', 'mean_linear', 'rala', 'mala'])
@pytest.mark.parametrize('n, m', [(5, 40), (40, 5)])
def test_kernels(name, n, m):
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    operator = CASES[name][0]
    leaves = [x.detach().to(device).requires_grad_() for x in tokens(n, m, torch.float32)]
    padding = torch.zeros(B, m, dtype=torch.bool, device=device)
    padding[1, m // 2 :] = True
    options = dict(key_padding_mask=padding, cross=True)
    out = operator(*leaves, **options, backend='triton')
    exact = [x.detach().double().requires_grad_() for x in leaves]
    expected = operator(*exact, **options, backend='reference')
    grad = torch.randn_like(out)
    ours = torch.autograd.grad(out, leaves, grad)
    theirs = torch.autograd.grad(expected, exact, grad.double())
    for a, b in zip((out, *ours), (expected, *theirs)):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('name', ['rala', 'walk', 'additive'])
def test_as_many_keys_as_queries_is_no_self_attention(name):
    """The mask hides keys, never queries."""
    operator = CASES[name][0]
    q, k, v = tokens(6, 6)
    padding = torch.arange(6).expand(B, 6) > 3
    self_attention, cross = (
        operator(q, k, v, key_padding_mask=padding, cross=cross) for cross in (False, True)
    )
    assert (self_attention - cross).abs().max() > 1e-4


@pytest.mark.parametrize('name', CASES)
def test_padding_only_yields_zero(name):
    q, k, v = tokens(4, 6, values=4 if name == 'additive' else 6)
    padding = torch.ones(B, 6, dtype=torch.bool)
    out = CASES[name][0](q, k, v, key_padding_mask=padding, cross=True)
    assert not out.any()


def test_errors_name_the_cure():
    q, k, v = tokens(3, 7)
    for name, (operator, _) in CASES.items():
        with pytest.raises(ValueError, match='cross=True takes keys other than the tokens of q'):
            operator(q, k, v if name != 'additive' else q)
        with pytest.raises(ValueError, match='k has shape [^;]*$'):
            operator(q, k[:1], v[:1] if name != 'additive' else q, cross=True)
    landmarks = torch.randn(2, 2, 3, D).double()
    nystrom = partial(nystrom_attention, landmarks_q=landmarks, landmarks_k=landmarks)
    for operator in (unnormalised_attention, nystrom):
        with pytest.raises(ValueError, match='k has shape') as error:
            operator(q, k, v)
        assert 'cross' not in str(error.value)  # they have no such option
    with pytest.raises(ValueError, match=r'\(B, heads, N, d_v\) = \(2, 2, 7, d_v\)'):
        linear(q, k, q, cross=True)
    with pytest.raises(ValueError, match=r'shape \(B, N\) = \(2, 7\), got \(2, 3\)'):
        rala(q, k, v, key_padding_mask=torch.zeros(2, 3, dtype=torch.bool), cross=True)
    with pytest.raises(ValueError, match='k has no tokens'):
        mala(q, k[:, :, :0], v[:, :, :0], cross=True)
    with pytest.raises(ValueError, match='rotary has the positions of one map'):
        mala(q, k, v, rotary=Rotary((1, 3), D), cross=True)
    with pytest.raises(
        BackendError, match='cross-attention through anchors has no kernel|CUDA|Triton'
    ):
        CASES['walk'][0](*(x.float() for x in (q, k, v)), cross=True, backend='triton')


def test_learnt_features_of_other_keys():
    q, k, _ = tokens(3, 7)
    weights = [torch.randn(*shape).double() for shape in ((4, D), (4, 8), (4,))]
    together = adaptive_features(q, k, *weights)
    for x, features in zip((q, k), together):
        torch.testing.assert_close(features, adaptive_features(x, x, *weights)[0])
