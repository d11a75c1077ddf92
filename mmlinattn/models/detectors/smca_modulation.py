"""Gaussian maps that modulate the cross-attention of SMCA."""

from typing import Optional, Sequence

import torch
from torch import Tensor

from ...ops.common.numerics import accumulation_dtype, no_autocast

# Number of scale values per head.
SCALES_PER_HEAD = dict(type1=0, type2=1, type3=2)


def gaussian_map(
    centers: Tensor, scales: Optional[Tensor], hw_shape: Sequence[int], smooth: float = 8.0
) -> Tensor:
    """Return the logarithm of a Gaussian around a point, per query and head.

    With dx, dy the distances of a cell from the centre, the map is ``-e / smooth``, where e is

    =========  ===================  ==========================
    last dim   e                    option ``dynamic_scale``
    =========  ===================  ==========================
    no scales  dx^2 + dy^2          ``'type1'``
    1          s (dx^2 + dy^2)      ``'type2'``
    2          s_x dx^2 + s_y dy^2  ``'type3'``, as released
    =========  ===================  ==========================

    Cells have integer coordinates: cell i lies at i, not at i + 0.5.

    Args:
        centers: (B, Q, heads, 2), x and y in cells; may lie outside of the map.
        scales: (B, Q, heads, 1 or 2), not negative; larger scales are narrower. None means 1.
        hw_shape: (H, W) of the map.
        smooth: divisor; with scale 1 the standard deviation is ``sqrt(smooth / 2)`` cells.

    Returns:
        (B, heads, Q, H * W), row-major over the map, 0 at the centre and negative elsewhere. At
        least float32, also under autocast, since distant corners reach several hundreds.

    Raises:
        ValueError: ``scales`` has another number of values.

    Example:
        >>> gaussian_map(torch.tensor([[[[1.0, 0.0]]]]), None, (1, 3), smooth=2.0)
        tensor([[[[-0.5000, -0.0000, -0.5000]]]])
    """
    if scales is not None and scales.shape[-1] not in (1, 2):
        raise ValueError(f'scales must have 1 or 2 values per head, got {tuple(scales.shape)}')
    height, width = hw_shape
    with no_autocast(centers):
        dtype = accumulation_dtype(centers.dtype)
        x, y = centers.to(dtype).transpose(1, 2).unsqueeze(-2).unbind(-1)  # [B, heads, Q, 1]
        columns = torch.arange(width, dtype=dtype, device=centers.device)
        rows = torch.arange(height, dtype=dtype, device=centers.device)
        dx2, dy2 = (x - columns).square(), (y - rows).square()  # [B, heads, Q, W], [.., H]
        along_x, along_y = dx2, dy2
        if scales is not None:
            scales = scales.to(dtype).transpose(1, 2)  # [B, heads, Q, 1 or 2]
            # A single value applies to both directions.
            along_x, along_y = scales[..., :1] * dx2, scales[..., -1:] * dy2
        # Dividing the 1D parts is cheaper than dividing the map.
        along_x, along_y = along_x / -smooth, along_y / -smooth
        out = along_x.unsqueeze(-2) + along_y.unsqueeze(-1)  # [B, heads, Q, H, W]
        return out.flatten(-2)
