"""Average pooling of tokens over the cells of a grid."""

from typing import Optional, Tuple, Union

import torch
from torch import Tensor

from ...ops.common.numerics import accumulation_dtype, constant, no_autocast
from .token_layout import TokenLayout


def pooling_grid(num_cells: int, hw_shape: Tuple[int, int]) -> Tuple[int, int]:
    """Return rows and columns of a grid of at most ``num_cells`` nearly square cells."""
    height, width = hw_shape
    if height > width:
        return pooling_grid(num_cells, (width, height))[::-1]
    rows = min(max(1, round((num_cells * height / width) ** 0.5)), height, num_cells)
    return rows, min(num_cells // rows, width)


def cell_masks(
    cells: int, size: int, device: torch.device, used: Optional[Tensor] = None
) -> Tensor:
    """Return which positions of an axis belong to each cell of adaptive average pooling.

    Pooling by products with such a matrix exports for any grid and map. The cells cover ``used``
    positions of each image (B,); by default all ``size``. The result is (cells,
    size) bool, or (B, cells, size) for a tensor. Cells may overlap.
    """
    cell = torch.arange(cells, device=device)[:, None]
    position = torch.arange(size, device=device)
    return _in_cell(position, cell, cells, size if used is None else used[:, None, None])


def _in_cell(
    position: Tensor, cell: Tensor, cells: Union[int, Tensor], size: Union[int, Tensor]
) -> Tensor:
    """Return True where a position on an axis of ``size`` is in a cell; all arguments broadcast."""
    end = ((cell + 1) * size + cells - 1) // cells
    return (position >= cell * size // cells) & (position < end)


def pool_tokens(x: Tensor, layout: TokenLayout, rows: Tensor, columns: Tensor) -> Tensor:
    """Average tokens of a map, x (B, heads, N, d), to (B, heads, cells, d).

    Padded tokens are excluded from the averages; a cell of padding only is 0. Rows and columns are
    cells of both axes, see :func:`cell_masks`, or their :func:`axis_weights`.
    """
    hw_shape, mask = layout.hw_shape, layout.key_padding_mask
    dtype = accumulation_dtype(x.dtype)
    batch, heads, _, dim = x.shape
    height, width = hw_shape
    maps = x.transpose(1, 2).reshape(batch, height, width, heads * dim)
    if x.dtype == torch.float16 and x.device.type == 'cpu':
        maps = maps.to(dtype)  # float16 products on a CPU take longer than the copy
    rows, columns = cell_weights(rows, dtype), cell_weights(columns, dtype)
    # Half types are multiplied without a float32 copy of the map, with sums in float32. Rounded
    # weights are equal within a cell, so that dividing by their sum removes the error.
    rounded = columns.to(maps.dtype)
    with no_autocast(x):
        if mask is not None:
            keep = ~mask.unflatten(1, hw_shape)[..., None]
            # Weight of the real tokens in each cell.
            weight = _average(keep.to(dtype), rows, rounded.to(dtype))
            pooled = _average(maps.where(keep, 0), rows, rounded) / weight.clamp(min=1e-30)
        else:
            pooled = _average(maps, rows, rounded)
            if maps.dtype != dtype:
                weight = rounded.sum(-1, keepdim=True, dtype=dtype)
                weight = weight if weight.dim() == 2 else weight[:, None]
                pooled = pooled / weight.clamp(min=1e-30)
    return pooled.flatten(1, 2).unflatten(2, (heads, dim)).transpose(1, 2).to(x.dtype)


def pool_tokens_dynamic(num_cells: int, x: Tensor, layout: TokenLayout) -> Tuple[Tensor, Tensor]:
    """Pool tokens over the cells of :func:`pooling_grid` in a graph with dynamic sizes.

    The number of rows and columns of the grid is computed in the graph. If the grid has fewer than
    ``num_cells`` cells, the last ones are empty.

    Returns:
        (B, heads, num_cells, d), and True for the cells that exist, (num_cells,) bool.
    """
    axes = [torch.arange(size, device=x.device) for size in layout.hw_shape]
    height, width = (axis[-1] + 1 for axis in axes)  # scalar tensors
    short, long = torch.minimum(height, width), torch.maximum(height, width)
    count = torch.arange(1, num_cells + 1, device=x.device)
    # round(sqrt(M short / long)) counts the r with (r - 1/2)^2 below M short / long. As Python's
    # round(), it rounds a half to the even number.
    left, right = (2 * count - 1).square() * long, 4 * num_cells * short
    rounded = ((left < right) | ((left == right) & (count % 2 == 0))).sum()
    few = torch.minimum(rounded.clamp(min=1), short)
    many = torch.minimum(count[-1] // few, long)
    rows, columns = few.where(height <= width, many), many.where(height <= width, few)

    cell = torch.arange(num_cells, device=x.device)[:, None]
    in_row = _in_cell(axes[0], cell // columns, rows, height)  # [M, H]
    in_column = _in_cell(axes[1], cell % columns, columns, width)  # [M, W]
    exists = cell[:, 0] < rows * columns
    weights = (in_row[:, :, None] & in_column[:, None]).flatten(1) & exists[:, None]  # [M, N]
    weights = weights.to(accumulation_dtype(x.dtype))
    with no_autocast(x):
        weights = weights / weights.sum(-1, keepdim=True).clamp(min=1)
        x_wide = x.to(weights.dtype)
        if layout.key_padding_mask is None:
            return (weights @ x_wide).to(x.dtype), exists
        keep = ~layout.key_padding_mask[:, None, :, None]  # [B, 1, N, 1]
        total = weights @ keep.to(weights.dtype)
        pooled = (weights @ x_wide.where(keep, 0)) / total.where(total > 0, 1)
        return pooled.to(x.dtype), exists


def cell_weights(cells: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the weights of the positions of each cell, which sum to 1."""
    if cells.dtype == dtype:
        return cells
    weights = cells.to(dtype)
    return weights / weights.sum(-1, keepdim=True).clamp(min=1)


def axis_weights(cells: int, size: int, x: Tensor) -> Tensor:
    """Return weights (cells, size) of the positions on an axis, in at least float32, for x."""
    return constant(_axis_weights, x.device, cells, size, accumulation_dtype(x.dtype))


def _axis_weights(cells: int, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return cell_weights(cell_masks(cells, size, device), dtype)


def _average(maps: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Average (B, H, W, C) to (B, rows, columns, C) in the dtype of ``rows``.

    W is reduced first, which reads a strided view of the fused projection once, without a copy.
    """
    pooled = (columns if columns.dim() == 2 else columns[:, None]) @ maps  # [B, H, columns, C]
    averaged = rows @ pooled.flatten(2).to(rows.dtype)
    return averaged.view(*averaged.shape[:2], *pooled.shape[2:])
