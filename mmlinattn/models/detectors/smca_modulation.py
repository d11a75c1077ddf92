"""Gaussian maps that modulate the cross-attention of SMCA."""

from typing import Sequence

import torch
from torch import Tensor

from ...ops.common.numerics import accumulation_dtype, no_autocast


def gaussian_map(
    centers: Tensor, scales: Tensor, hw_shape: Sequence[int], smooth: float = 8.0
) -> Tensor:
    """Return the logarithm of a Gaussian around a point, per query and head.

    With dx, dy the distances of a cell from the centre, it is ``-(s_x dx^2 + s_y dy^2) / smooth``.

    Cells have integer coordinates: cell i lies at i, not at i + 0.5.

    Args:
        centers: (B, Q, heads, 2), x and y in cells; may lie outside of the map.
        scales: (B, Q, heads, 2), s_x and s_y, not negative; larger scales are narrower.
        hw_shape: (H, W) of the map.
        smooth: divisor; with scale 1 the standard deviation is ``sqrt(smooth / 2)`` cells.

    Returns:
        (B, heads, Q, H * W), row-major over the map, 0 at the centre and negative elsewhere. At
        least float32, also under autocast, since distant corners reach several hundreds.

    Example:
        >>> gaussian_map(torch.tensor([[[[1.0, 0.0]]]]), torch.ones(1, 1, 1, 2), (1, 3), smooth=2.0)
        tensor([[[[-0.5000, -0.0000, -0.5000]]]])
    """
    height, width = hw_shape
    with no_autocast(centers):
        dtype = accumulation_dtype(centers.dtype)
        x, y = centers.to(dtype).transpose(1, 2).unsqueeze(-2).unbind(-1)  # [B, heads, Q, 1]
        columns = torch.arange(width, dtype=dtype, device=centers.device)
        rows = torch.arange(height, dtype=dtype, device=centers.device)
        # [B, heads, Q, 1]; dividing the scales is cheaper than dividing the map.
        scale_x, scale_y = (scales.to(dtype) / -smooth).transpose(1, 2)[..., None, :].unbind(-1)
        along_x, along_y = scale_x * (x - columns).square(), scale_y * (y - rows).square()
        out = along_x.unsqueeze(-2) + along_y.unsqueeze(-1)  # [B, heads, Q, H, W]
        return out.flatten(-2)
