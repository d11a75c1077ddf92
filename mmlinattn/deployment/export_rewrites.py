"""Replacements for layers that cannot be exported with dynamic sizes."""

from typing import Any, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..models.layers.pooling import cell_masks, cell_weights


def rewrite_for_export(model: nn.Module) -> None:
    """Replace MMSegmentation's ``Upsample`` and torch's ``AdaptiveAvgPool2d`` in place."""
    for module in list(model.modules()):
        children: Any = list(module.named_children())
        for name, layer in children:
            if isinstance(layer, nn.AdaptiveAvgPool2d) and layer.output_size not in (1, (1, 1)):
                setattr(module, name, AdaptiveMean(layer.output_size))
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


class AdaptiveMean(nn.Module):
    """Equivalent of torch's ``AdaptiveAvgPool2d`` by two matrix products.

    Example:
        >>> x = torch.randn(2, 3, 7, 10)
        >>> torch.allclose(AdaptiveMean(3)(x), nn.AdaptiveAvgPool2d(3)(x), atol=1e-6)
        True
    """

    def __init__(self, output_size) -> None:
        super().__init__()
        self.cells = (output_size,) * 2 if isinstance(output_size, int) else tuple(output_size)

    def forward(self, x: Tensor) -> Tensor:
        rows, columns = (
            cell_weights(cell_masks(number, size, x.device), torch.float32).to(x.dtype)
            for number, size in zip(self.cells, x.shape[-2:])
        )
        return rows @ x @ columns.transpose(0, 1)
