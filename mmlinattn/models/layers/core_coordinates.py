"""Coordinates of cores and map tokens in core attention."""

import math
from typing import Any, List, NamedTuple, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...ops.common.numerics import Mask, accumulation_dtype, constant, is_tracing, needs_gradient
from ...ops.common.packed import PackedShapes
from ...ops.common.rotary import turn

GRID = 64  # side of the grid of points that cores can start at


class CoreCoordinates(NamedTuple):
    """Coordinates (x, y) of cores and map tokens; a map spans -1 to 1 in both."""

    cores: Tensor  # [B, M, 2]
    tokens: Tensor  # [B or 1, N, 2]

    def images(self, packed: PackedShapes) -> 'List[CoreCoordinates]':
        """Return those of each of the packed images, whose cores are a batch."""
        tokens = packed.with_extra_tokens(0).split(self.tokens)
        return [CoreCoordinates(*pair) for pair in zip(self.cores.split(1), tokens)]


def map_coordinates(
    hw_shape: Tuple[int, int], like: Tensor, mask: Mask = None, augment: Optional[Tensor] = None
) -> Tensor:
    """Return the coordinates (B or 1, N, 2) of map tokens, the centres of their cells.

    Args:
        hw_shape: (H, W) of the map, which spans -1 to 1 in both, without its padding.
        like: its device is that of the result, and its dtype, which is at least float32.
        mask: (B, N) bool, True = padding, below and right of an image.
        augment: (2, 2), shifts of rows and columns, then the factors that follow, see
            :class:`.RotaryCoordinates`.
    """
    height, width = hw_shape
    options: dict = dict(dtype=accumulation_dtype(like.dtype), device=like.device)
    rows, columns = torch.arange(height, **options), torch.arange(width, **options)
    sizes: Any = (height, width)
    if mask is not None:
        real = ~mask.unflatten(1, (height, width))  # [B, H, W]
        sizes = [real.any(dim).sum(1, keepdim=True).clamp(min=1) for dim in (2, 1)]
    y, x = (2 * (cell + 0.5) / size - 1 for cell, size in zip((rows, columns), sizes))
    if augment is not None:
        y, x = ((cell + shift) * factor for cell, shift, factor in zip((y, x), *augment))
    y, x = y.view(-1, height, 1), x.view(-1, 1, width)
    return torch.stack(torch.broadcast_tensors(x, y), -1).flatten(1, 2)


def rotation_angles(coords: Tensor, like: Tensor, base: float, zeros: int) -> Tensor:
    """Return cosines and sines (B or 1, 1, N, d / 2, 2) for coordinates (B or 1, N, 2).

    x turns the first half of the d channels of ``like`` and y the second, in neighbouring pairs, by
    ``2 pi coordinate / base^(t / (d / 4))``; the last ``zeros`` of them are 0.
    """
    coords = coords.to(accumulation_dtype(coords.dtype))
    count = like.shape[-1] // 4
    frequencies = constant(_frequencies, coords.device, count, base, zeros, coords.dtype)
    angles = (coords[:, None, :, :, None] * frequencies).flatten(-2)  # [B, 1, N, d / 2]
    return torch.stack([angles.cos(), angles.sin()], -1).to(like.dtype)


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Rotate queries or keys (B, heads, N, d) by the result of :func:`rotation_angles`."""
    # The fast rotation has no gradient of the angles.
    return turn(x, angles, False, is_tracing() or needs_gradient(angles))


def _frequencies(
    count: int, base: float, zeros: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    exponent = torch.arange(count - zeros, dtype=dtype, device=device) / count
    return F.pad(2 * math.pi * base**-exponent, (0, zeros))


def new_coordinates(count: int) -> nn.Parameter:
    """Return coordinates (1, M, 2) before their tanh, which start as farthest points of the square.

    The first is near the centre; each other one is the farthest from those before.
    """
    axis = (2 * torch.arange(GRID, device='cpu') + 1) / GRID - 1
    grid = torch.cartesian_prod(axis, axis)
    index, distance, points = int(grid.norm(dim=1).argmin()), torch.full_like(grid[:, 0], 9), []
    for _ in range(count):
        points.append(grid[index])
        distance = distance.minimum((grid - grid[index]).norm(dim=1))
        index = int(distance.argmax())
    return nn.Parameter(torch.tensor(torch.stack(points).atanh().tolist())[None])


def new_cores(count: int, embed_dims: int) -> nn.Parameter:
    """Return learnt cores (1, M, C), normal with std ``C^-1/2`` at first."""
    return nn.Parameter(torch.randn(1, count, embed_dims) / embed_dims**0.5)


def load_first_cores(module: nn.Module, *names: str) -> None:
    """Let parameters (1, M, ...) of a module load the first M of a checkpoint that has more."""

    def shorten(state_dict: dict, prefix: str, *_: Any) -> None:
        for name in names:
            loaded, own = state_dict.get(prefix + name), getattr(module, name)
            if loaded is not None and loaded.dim() == own.dim():
                state_dict[prefix + name] = loaded[:, : own.shape[1]]

    module._register_load_state_dict_pre_hook(shorten)
