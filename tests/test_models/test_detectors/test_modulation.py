"""Gaussian maps compared with a loop."""

import pytest
import torch

from mmlinattn.models.detectors.smca_decoder import gaussian_map

HW = (3, 5)


def by_loop(centers, scales, hw, smooth):
    batch, queries, heads, _ = centers.shape
    out = torch.zeros(batch, heads, queries, hw[0] * hw[1], dtype=centers.dtype)
    for b, i, k in torch.cartesian_prod(*map(torch.arange, (batch, queries, heads))).tolist():
        for cell in range(hw[0] * hw[1]):
            row, column = divmod(cell, hw[1])
            dx2 = (centers[b, i, k, 0] - column) ** 2
            dy2 = (centers[b, i, k, 1] - row) ** 2
            s_x, s_y = scales[b, i, k]
            out[b, k, i, cell] = -(s_x * dx2 + s_y * dy2) / smooth
    return out


def random_case():
    centers = 6 * torch.rand(2, 4, 3, 2, dtype=torch.float64) - 1
    return centers, torch.rand(2, 4, 3, 2, dtype=torch.float64)


def test_equals_a_loop_with_gradients():
    inputs = [x.requires_grad_() for x in random_case()]
    ours, theirs = gaussian_map(*inputs, HW, 5.0), by_loop(*inputs, HW, 5.0)
    torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=1e-13)
    weight = torch.randn_like(ours)
    for a, b in zip(*(torch.autograd.grad((x * weight).sum(), inputs) for x in (ours, theirs))):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_float32_under_autocast_and_in_half(dtype):
    centers, scales = (x.to(dtype) for x in random_case())
    exact = gaussian_map(centers.double(), 300 * scales.double(), (40, 40))
    assert exact.min() < -65504  # exceeds the range of half precision
    with torch.autocast('cpu', dtype=dtype):
        ours = gaussian_map(centers, 300 * scales.float(), (40, 40))
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-4)
