"""Vicinal groups: sets of distances that share a spatial weight."""

from dataclasses import dataclass
from typing import Any, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from ..common.numerics import is_static

GROUPS = ('chebyshev', 'log')


@dataclass(frozen=True)
class RippleOptions:
    """Options of :func:`mmlinattn.ops.ripple_attention`."""

    hw_shape: Tuple[int, int]
    groups: str
    key_padding_mask: Optional[Tensor]
    eps: float = 0.0


def check_groups(groups: str, backend: str) -> None:
    """Raise ValueError unless the groups are known and ``backend`` supports them."""
    if groups not in GROUPS:
        raise ValueError(f'groups must be one of {GROUPS}, got {groups!r}')
    if backend == 'tile' and groups != 'chebyshev':
        raise ValueError(
            f"backend='tile' needs groups='chebyshev', got {groups!r}: logarithmic groups reach "
            "over halos as large as the map; use backend='sat'"
        )


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


def weight_pairs(weights: Tensor, options: RippleOptions) -> Tensor:
    """Return the weight of each (query, key) pair, (B, heads, N, N), 0 for padding."""
    radii = group_radii(weights.shape[-1] - 1, options.groups)
    axes = [axis_distance((0, n), (0, n), weights.device) for n in options.hw_shape]
    distance = chebyshev_distance(*axes)
    index = (distance[..., None] > torch.tensor(radii, device=weights.device)).sum(-1)
    pairs = weights.gather(-1, index.expand(*weights.shape[:2], -1, -1))
    mask = options.key_padding_mask
    return pairs if mask is None else pairs.masked_fill(mask[:, None, None], 0)


def drop_empty_last(
    weights: Tensor, shape: Sequence[int], distance: int, mask: Optional[Tensor]
) -> Tensor:
    """Set the weight of the last group to 0 where it has no tokens.

    Exact arithmetic gives the same result. But the last group is computed as the whole map minus
    the near tokens: with a large weight, rounding errors of an empty group exceed the result. The
    shape is that of the map or clip; the last group begins at ``distance``.
    """
    if mask is None and is_static(*shape) and max(shape) // 2 >= distance:
        return weights  # every token has others there
    far: Any = None  # largest distance of a real token, [B or 1, tokens along the axes so far]
    for axis, size in enumerate(shape):
        place = torch.arange(size, device=weights.device)
        low, high = 0, size - 1
        if mask is not None:
            others = [1 + other for other in range(len(shape)) if other != axis]
            real = (~mask).unflatten(1, shape).any(others)  # [B, size]
            low = place.where(real, size).amin(1, keepdim=True)
            high = place.where(real, -1).amax(1, keepdim=True)
        along = torch.maximum(place - low, high - place).view(-1, 1, size)
        far = along[:, 0] if far is None else torch.maximum(far[..., None], along).flatten(1)
    last = weights[..., -1:].masked_fill((far < distance)[:, None, :, None], 0)
    return torch.cat([weights[..., :-1], last], -1)
