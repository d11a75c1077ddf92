"""Replacements for what cannot be exported with dynamic sizes."""

from typing import Any, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..models.layers.pooling import cell_masks, cell_weights


def rewrite_for_export(model: nn.Module) -> None:
    """Replace MMSegmentation's ``Upsample`` in place."""
    for module in list(model.modules()):
        children: Any = list(module.named_children())
        for name, layer in children:
            factor = getattr(layer, 'scale_factor', None)
            is_upsample = type(layer).__name__ == 'Upsample' and not layer.size
            if is_upsample and isinstance(factor, float) and factor.is_integer():
                enlarge = Enlarge(int(factor), layer.mode, layer.align_corners)
                setattr(module, name, enlarge)


class Enlarge(nn.Module):
    """Interpolation of (B, C, H, W) by an integer factor."""

    def __init__(self, factor: int, mode: str, align_corners: Optional[bool]) -> None:
        super().__init__()
        self.factor, self.mode, self.align_corners = factor, mode, align_corners

    def forward(self, x: Tensor) -> Tensor:
        size = [self.factor * side for side in x.shape[-2:]]
        return F.interpolate(x, size, mode=self.mode, align_corners=self.align_corners)


def adaptive_mean(input: Tensor, output_size: Any) -> Tensor:
    """Compute torch's ``adaptive_avg_pool2d`` of (..., H, W) by two matrix products.

    torch's decomposition fixes the cells at the size of the capture.
    """
    x = input
    cells = (output_size,) * 2 if isinstance(output_size, int) else tuple(output_size)
    if cells == (1, 1):
        return x.mean((-2, -1), keepdim=True)
    weights = [
        None if cell is None else cell_weights(cell_masks(cell, size, x.device), torch.float32)
        for cell, size in zip(cells, x.shape[-2:])
    ]
    rows, columns = (weight if weight is None else weight.to(x.dtype) for weight in weights)
    x = x if rows is None else rows @ x
    return x if columns is None else x @ columns.transpose(0, 1)
