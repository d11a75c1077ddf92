"""Vicinal groups: sets of distances that share a spatial weight."""

from typing import List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from ..common.numerics import is_static

GROUPS = ('chebyshev', 'log')


def group_radii(max_distance: int, groups: str) -> List[int]:
    """Return the largest Chebyshev distance of each group except the last."""
    if groups == 'log':
        return [2**g - 1 for g in range(max_distance)]
    return list(range(max_distance))


def axis_distance(queries: Sequence[int], keys: Sequence[int], device: torch.device) -> Tensor:
    """Return |query - key| along one axis, [queries, keys], for ranges (start, stop)."""
    rows = torch.arange(*queries, device=device)
    return (rows[:, None] - torch.arange(*keys, device=device)).abs()


def chebyshev_distance(distance: Tensor, *axes: Tensor) -> Tensor:
    """Return the distances of (query, key) positions, row-major, from those along each axis."""
    for axis in axes:
        distance = torch.maximum(distance[:, None, :, None], axis[None, :, None, :])
        distance = distance.flatten(2).flatten(0, 1)
    return distance


def group_index(hw_shape: Tuple[int, int], radii: Sequence[int], device: torch.device) -> Tensor:
    """Return the group of each (query, key) pair of a map, (N, N)."""
    rows, columns = (axis_distance((0, n), (0, n), device) for n in hw_shape)
    distance = chebyshev_distance(rows, columns)
    return (distance[..., None] > torch.tensor(radii, device=device)).sum(-1)


def has_far_tokens(
    hw_shape: Tuple[int, int], distance: int, mask: Optional[Tensor], device: torch.device
) -> Optional[Tensor]:
    """Return True for tokens with a real token at ``distance`` or beyond, (B or 1, N) bool.

    None means True for all tokens, which follows from the size of the map.
    """
    if mask is None and is_static(*hw_shape) and max(hw_shape) // 2 >= distance:
        return None
    farthest = []
    for size, axis in zip(hw_shape, (2, 1)):
        place = torch.arange(size, device=device)
        low, high = 0, size - 1
        if mask is not None:
            real = (~mask).unflatten(1, hw_shape).any(axis)  # [B, size]
            low = place.where(real, size).amin(1, keepdim=True)
            high = place.where(real, -1).amax(1, keepdim=True)
        farthest.append(torch.maximum(place - low, high - place).view(-1, size))
    return torch.maximum(farthest[0][:, :, None], farthest[1][:, None]).flatten(1) >= distance


def drop_empty_last(
    weights: Tensor, hw_shape: Tuple[int, int], distance: int, mask: Optional[Tensor]
) -> Tensor:
    """Set the weight of the last group to 0 where it has no tokens.

    Exact arithmetic gives the same result. But the last group is computed as the whole map minus
    the near tokens: with a large weight, rounding errors of an empty group exceed the result.

    Args:
        weights: (B, heads, N, G + 1).
        distance: smallest distance of the last group.
    """
    far = has_far_tokens(hw_shape, distance, mask, weights.device)
    if far is None:
        return weights
    last = weights[..., -1:].masked_fill(~far[:, None, :, None], 0)
    return torch.cat([weights[..., :-1], last], -1)
