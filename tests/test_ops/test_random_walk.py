import pytest
import torch

from mmlinattn.ops import random_walk_attention
from mmlinattn.ops.random_walk.anchor_solver import series_factors


def inputs(b=2, h=2, n=12, d=8, m=5, dtype=torch.float64):
    q, k, v = torch.randn(3, b, h, n, d, dtype=dtype)
    anchors_q, anchors_k = torch.randn(2, h, m, d, dtype=dtype)
    return q, k, v, anchors_q, anchors_k


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_half_precision_with_logits_of_sixty(dtype):
    q, k, v, anchors_q, anchors_k = inputs(1, 2, 4096, 16, 32, torch.float32)
    scale = 60 / (q @ anchors_k.mT).abs().max()
    half = [x.to(dtype) for x in (scale * q, scale * k, v, anchors_q, anchors_k)]
    exact = random_walk_attention(*(x.double() for x in half), decay=0.5)
    leaves = [x.requires_grad_() for x in half]
    for autocast in (False, True):
        with torch.autocast('cpu', dtype=dtype, enabled=autocast):
            out = random_walk_attention(*leaves, decay=0.5)
        assert out.dtype == dtype
        assert (out.double() - exact).norm() / exact.norm() < 1e-2
        out.float().square().mean().backward()
    assert all(torch.isfinite(x.grad).all() for x in leaves)


@pytest.mark.parametrize('decay', [0.1, 0.5, 0.9])
def test_series_reaches_float32(decay):
    args = inputs(1, 1, 256, 16, 64, torch.float32)
    exact = random_walk_attention(*(x.double() for x in args), decay=decay, backend='reference')
    out = random_walk_attention(*args, decay=decay, backend='torch')
    assert (out.double() - exact).norm() / exact.norm() < 2e-6


def test_number_of_factors():
    assert [series_factors(decay, torch.float32) for decay in (0.1, 0.5, 0.9)] == [3, 5, 8]
    assert [series_factors(decay, torch.float64) for decay in (1e-30, 0.5)] == [1, 6]


def test_anchors_of_each_image():
    q, k, v, anchors_q, anchors_k = inputs()
    own = [torch.randn(2, *a.shape, dtype=a.dtype) for a in (anchors_q, anchors_k)]
    out = random_walk_attention(q, k, v, *own)
    for b in range(2):
        one = random_walk_attention(*(x[b : b + 1] for x in (q, k, v)), *(a[b] for a in own))
        torch.testing.assert_close(out[b : b + 1], one)


@pytest.mark.parametrize(
    'change, error, message',
    [
        (dict(decay=0.0), ValueError, r'decay must be in \(0, 1\), got 0.0'),
        (dict(decay=1.0), ValueError, 'got 1.0'),
        (
            dict(decay=0.9999),
            ValueError,
            'at most 0.999 in a walk without steps.*, got 0.9999: set',
        ),
        (dict(decay=float('nan')), ValueError, 'got nan'),
        (dict(steps=0), ValueError, 'steps .* got 0'),
        (dict(steps=1.5), TypeError, 'steps .* got 1.5'),
        (dict(anchors_q=torch.randn(3, 5, 8)), ValueError, r'anchors_q .*\(2, M, 8\).*\(3, 5, 8\)'),
        (dict(anchors_k=torch.randn(2, 5, 7)), ValueError, r'anchors_k .* got \(2, 5, 7\)'),
        (dict(anchors_k=torch.randn(2, 6, 8)), ValueError, 'has 5 anchors, anchors_k has 6'),
        (dict(anchors_q=torch.randn(2, 0, 8)), ValueError, 'M >= 1'),
        (dict(k=torch.randn(2, 2, 11, 8)), ValueError, r'k has shape \(2, 2, 11, 8\)'),
        (dict(key_padding_mask=torch.zeros(2, 12)), TypeError, 'must be bool'),
    ],
)
def test_bad_input_names_argument_and_value(change, error, message):
    q, k, v, anchors_q, anchors_k = inputs(dtype=torch.float32)
    args = dict(q=q, k=k, v=v, anchors_q=anchors_q, anchors_k=anchors_k)
    with pytest.raises(error, match=message):
        random_walk_attention(**{**args, **change})
