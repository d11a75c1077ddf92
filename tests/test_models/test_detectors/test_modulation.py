"""Gaussian maps compared with a loop, for all types of scale."""

import pytest
import torch

from mmlinattn.models.detectors.smca_modulation import gaussian_map

HW = (3, 5)


def by_loop(centers, scales, hw, smooth):
    batch, queries, heads, _ = centers.shape
    out = torch.zeros(batch, heads, queries, hw[0] * hw[1], dtype=centers.dtype)
    for b, i, k in torch.cartesian_prod(*map(torch.arange, (batch, queries, heads))).tolist():
        for cell in range(hw[0] * hw[1]):
            row, column = divmod(cell, hw[1])
            dx2 = (centers[b, i, k, 0] - column) ** 2
            dy2 = (centers[b, i, k, 1] - row) ** 2
            s = [1] if scales is None else [*scales[b, i, k]]
            out[b, k, i, cell] = -(s[0] * dx2 + s[-1] * dy2) / smooth
    return out


def random_case(values):
    centers = 6 * torch.rand(2, 4, 3, 2, dtype=torch.float64) - 1
    scales = torch.rand(2, 4, 3, values, dtype=torch.float64) if values else None
    return centers, scales


@pytest.mark.parametrize('values', [0, 1, 2])
def test_equals_a_loop_with_gradients(values):
    inputs = [x.requires_grad_() for x in random_case(values) if x is not None]
    scales = inputs[1] if values else None
    ours = gaussian_map(inputs[0], scales, HW, 5.0)
    theirs = by_loop(inputs[0], scales, HW, 5.0)
    torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=1e-13)
    weight = torch.randn_like(ours)
    for a, b in zip(*(torch.autograd.grad((x * weight).sum(), inputs) for x in (ours, theirs))):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_float32_under_autocast_and_in_half(dtype):
    centers, scales = (x.to(dtype) for x in random_case(2))
    exact = gaussian_map(centers.double(), 300 * scales.double(), (40, 40))
    assert exact.min() < -65504  # exceeds the range of half precision
    with torch.autocast('cpu', dtype=dtype):
        ours = gaussian_map(centers, 300 * scales.float(), (40, 40))
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-4)
    assert gaussian_map(centers, None, HW).dtype == torch.float32


def test_wrong_number_of_scales_raises():
    with pytest.raises(ValueError, match=r'1 or 2 values per head, got \(2, 4, 3, 4\)'):
        gaussian_map(torch.zeros(2, 4, 3, 2), torch.zeros(2, 4, 3, 4), HW)
