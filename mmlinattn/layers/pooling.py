"""Means of tokens over the cells of a grid."""

from typing import Tuple, Union

import torch
from torch import Tensor

from ..ops.common.numerics import accumulation_dtype, no_autocast
from .base import TokenMap


def pooling_grid(num_cells: int, hw_shape: Tuple[int, int]) -> Tuple[int, int]:
    """Rows and columns of a grid of at most ``num_cells`` nearly square cells over a map.

    Example:
        >>> pooling_grid(64, (128, 128)), pooling_grid(64, (64, 128)), pooling_grid(64, (50, 3))
        ((8, 8), (6, 10), (32, 2))
    """
    height, width = hw_shape
    if height > width:
        return pooling_grid(num_cells, (width, height))[::-1]
    rows = min(max(1, round((num_cells * height / width) ** 0.5)), height, num_cells)
    return rows, min(num_cells // rows, width)


def bins(
    cells: int, size: int, device: torch.device, used: Union[int, Tensor, None] = None
) -> Tensor:
    """Which places of an axis each cell of adaptive average pooling has, (cells, size) bool: as
    products with a matrix pooling exports for any grid, at the size that is traced.

    Args:
        used: only so many places from the first on are divided; (B,) for the images of a batch,
            which gives (B, cells, size).

    Example:
        >>> bins(2, 3, torch.device('cpu')).int().tolist()  # cells may overlap
        [[1, 1, 0], [0, 1, 1]]
    """
    cell = torch.arange(cells, device=device)[:, None]
    place = torch.arange(size, device=device)
    used = size if used is None else used
    if isinstance(used, Tensor):
        used = used[:, None, None]
    return (place >= cell * used // cells) & (place < -(-(cell + 1) * used // cells))


def pool_tokens(x: Tensor, tokens: TokenMap, rows: Tensor, columns: Tensor) -> Tensor:
    """(B, heads, N, d) averaged over the cells of a grid, (B, heads, cells, d).

    Padded tokens are left out of the averages; a cell of nothing but padding is 0.

    Args:
        rows, columns: the cells, see :func:`bins`.
    """
    hw_shape, mask = tokens.hw_shape, tokens.key_padding_mask
    maps = x.transpose(1, 2).flatten(2).unflatten(1, hw_shape)  # [B, H, W, C]
    maps = maps.to(accumulation_dtype(x.dtype))
    rows, columns = (_shares(cells, maps.dtype) for cells in (rows, columns))
    with no_autocast(x):
        if mask is None:
            pooled = _average(maps, rows, columns)
        else:
            keep = ~mask.unflatten(1, hw_shape)[..., None]
            share = _average(keep.to(maps.dtype), rows, columns)  # of real tokens in each cell
            pooled = _average(maps.where(keep, 0), rows, columns) / share.where(share > 0, 1)
    return pooled.flatten(1, 2).unflatten(-1, x.shape[1::2]).transpose(1, 2).to(x.dtype)


def _shares(cells: Tensor, dtype: torch.dtype) -> Tensor:
    inside = cells.to(dtype)
    return inside / inside.sum(-1, keepdim=True).clamp(min=1)


def _average(maps: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """(B, H, W, C) to (B, rows, columns, C)."""
    pooled = (rows @ maps.flatten(2)).unflatten(-1, maps.shape[2:])  # [B, rows, W, C]
    return (columns if columns.dim() == 2 else columns[:, None]) @ pooled
