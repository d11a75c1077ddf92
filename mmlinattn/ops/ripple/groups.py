"""Vicinal groups: which tokens share a spatial weight."""

from typing import List, Sequence, Tuple

import torch
from torch import Tensor

GROUPS = ('chebyshev', 'log')


def group_radii(max_distance: int, groups: str) -> List[int]:
    """Largest Chebyshev distance in each group but the last, which holds all beyond."""
    if groups == 'log':
        return [2**g - 1 for g in range(max_distance)]
    return list(range(max_distance))


def axis_distance(queries: Sequence[int], keys: Sequence[int], device: torch.device) -> Tensor:
    """|query - key| of coordinates along one axis given as (start, stop), [queries, keys]."""
    rows = torch.arange(*queries, device=device)
    return (rows[:, None] - torch.arange(*keys, device=device)).abs()


def chebyshev_distance(rows: Tensor, columns: Tensor) -> Tensor:
    """Distances of (query, key) positions, row-major, from those along each axis."""
    distance = torch.maximum(rows[:, None, :, None], columns[None, :, None, :])
    return distance.flatten(2).flatten(0, 1)


def group_index(hw_shape: Tuple[int, int], radii: Sequence[int], device: torch.device) -> Tensor:
    """Group of each (query, key) pair of a map, (N, N)."""
    rows, columns = (axis_distance((0, n), (0, n), device) for n in hw_shape)
    distance = chebyshev_distance(rows, columns)
    return (distance[..., None] > torch.tensor(radii, device=device)).sum(-1)
