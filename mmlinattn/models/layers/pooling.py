"""Means of tokens over the cells of a grid."""

from typing import Tuple, Union

import torch
from torch import Tensor

from ...ops.common.numerics import accumulation_dtype, no_autocast
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
    products with a matrix pooling exports for any grid and map.

    Args:
        used: only so many places from the first on are divided; (B,) for the images of a batch,
            which gives (B, cells, size).

    Example:
        >>> bins(2, 3, torch.device('cpu')).int().tolist()  # cells may overlap
        [[1, 1, 0], [0, 1, 1]]
    """
    cell = torch.arange(cells, device=device)[:, None]
    place = torch.arange(size, device=device)
    used = size if used is None else used[:, None, None] if isinstance(used, Tensor) else used
    return _in_cell(place, cell, cells, used)


def _in_cell(
    place: Tensor, cell: Tensor, cells: Union[int, Tensor], size: Union[int, Tensor]
) -> Tensor:
    """Whether places of an axis of ``size`` are in a cell of ``cells``; all broadcast."""
    return (place >= cell * size // cells) & (place < ((cell + 1) * size + cells - 1) // cells)


def pool_tokens(x: Tensor, tokens: TokenMap, rows: Tensor, columns: Tensor) -> Tensor:
    """(B, heads, N, d) averaged over the cells of a grid, (B, heads, cells, d).

    Padded tokens are left out of the averages; a cell of nothing but padding is 0.

    Args:
        rows, columns: the cells, see :func:`bins`.
    """
    hw_shape, mask = tokens.hw_shape, tokens.key_padding_mask
    dtype = accumulation_dtype(x.dtype)
    maps = x.transpose(1, 2).flatten(2).unflatten(1, hw_shape)  # [B, H, W, C]
    if x.dtype == torch.float16 and x.device.type == 'cpu':
        maps = maps.to(dtype)  # its products are slower than the copy
    rows, columns = _shares(rows, dtype), _shares(columns, dtype)
    # Half types are multiplied as they are, with sums in float32: no copy of the map. Shares lose
    # digits by that, the same in a whole cell: what they add up to makes them good.
    rounded = columns.to(maps.dtype)
    with no_autocast(x):
        if mask is not None:
            keep = ~mask.unflatten(1, hw_shape)[..., None]
            # Of real tokens in each cell.
            share = _average(keep.to(dtype), rows, rounded.to(dtype))
            pooled = _average(maps.where(keep, 0), rows, rounded) / share.clamp(min=1e-30)
        else:
            pooled = _average(maps, rows, rounded)
            if maps.dtype != dtype:
                share = rounded.sum(-1, keepdim=True, dtype=dtype)
                share = share if share.dim() == 2 else share[:, None]
                pooled = pooled / share.clamp(min=1e-30)
    return pooled.flatten(1, 2).unflatten(-1, x.shape[1::2]).transpose(1, 2).to(x.dtype)


def pool_grid_of_any_map(num_cells: int, x: Tensor, tokens: TokenMap) -> Tuple[Tensor, Tensor]:
    """:func:`pool_tokens` over the cells of :func:`pooling_grid`, in a graph for maps of any size:
    there the grid is not known, and where it has fewer cells the last ones have no tokens.

    Args:
        x: (B, heads, N, d).

    Returns:
        (B, heads, num_cells, d), and whether the grid has these cells, (num_cells,) bool.
    """
    places = [torch.arange(size, device=x.device) for size in tokens.hw_shape]
    height, width = (place[-1] + 1 for place in places)  # tensors of one number
    short, long = torch.minimum(height, width), torch.maximum(height, width)
    count = torch.arange(1, num_cells + 1, device=x.device)
    # How often (r - 1/2)^2 is below M short / long; round() takes a half to the even number.
    left, right = (2 * count - 1).square() * long, 4 * num_cells * short
    rounded = ((left < right) | ((left == right) & (count % 2 == 0))).sum()
    few = torch.minimum(rounded.clamp(min=1), short)
    many = torch.minimum(count[-1] // few, long)
    rows, columns = few.where(height <= width, many), many.where(height <= width, few)

    cell = torch.arange(num_cells, device=x.device)[:, None]
    down = _in_cell(places[0], cell // columns, rows, height)  # [M, H]
    across = _in_cell(places[1], cell % columns, columns, width)  # [M, W]
    exists = cell[:, 0] < rows * columns
    inside = (down[:, :, None] & across[:, None]).flatten(1) & exists[:, None]  # [M, N]
    inside = inside.to(accumulation_dtype(x.dtype))
    with no_autocast(x):
        inside = inside / inside.sum(-1, keepdim=True).clamp(min=1)
        x_wide = x.to(inside.dtype)
        if tokens.key_padding_mask is None:
            return (inside @ x_wide).to(x.dtype), exists
        keep = ~tokens.key_padding_mask[:, None, :, None]  # [B, 1, N, 1]
        share = inside @ keep.to(inside.dtype)
        pooled = (inside @ x_wide.where(keep, 0)) / share.where(share > 0, 1)
        return pooled.to(x.dtype), exists


def _shares(cells: Tensor, dtype: torch.dtype) -> Tensor:
    inside = cells.to(dtype)
    return inside / inside.sum(-1, keepdim=True).clamp(min=1)


def _average(maps: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """(B, H, W, C) to (B, rows, columns, C) in the type of ``rows``. Along W first: with that a
    part of wider rows, as tokens are of one projection, is read once and in its place."""
    pooled = (columns if columns.dim() == 2 else columns[:, None]) @ maps  # [B, H, columns, C]
    return (rows @ pooled.flatten(2).to(rows.dtype)).unflatten(-1, pooled.shape[2:])
