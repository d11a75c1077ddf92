"""Ripple attention in plain operations, for exported graphs and maps of any size.

As in :mod:`.tile` the weight of the last group is subtracted everywhere. A row of the map is cut
into short pieces of queries. Each piece attends to the keys around it, row by row, in two dense
products. Nothing is written in place, and the size of the map need not be a Python integer.
"""

from typing import Sequence, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..common.numerics import accumulation_dtype, is_static, no_autocast, zero_padding
from .groups import RippleOptions, axis_distance, drop_empty_last, group_radii

PIECE = 8  # queries
# Number of rows around a query above which a graph of dynamic size has too many operations.
MAX_ROWS = 127


def ripple_rows(q: Tensor, k: Tensor, v: Tensor, weights: Tensor, options: RippleOptions) -> Tensor:
    """Compute :func:`mmlinattn.ops.ripple_attention` in O(N r^2 (m + d)) for a last radius r."""
    out_dtype, heads = v.dtype, q.shape[1]
    hw_shape, mask = options.hw_shape, options.key_padding_mask
    dtype = accumulation_dtype(out_dtype)
    radii = _bounded_radii(hw_shape, group_radii(weights.shape[-1] - 1, options.groups))
    with no_autocast(q):
        q, k, weights = q.to(dtype), zero_padding(k.to(dtype), mask), weights.to(dtype)
        v1 = F.pad(v.to(dtype), (0, 1), value=1.0)  # the normaliser is the attention to ones
        weights = weights[..., : len(radii) + 1]
        weights = drop_empty_last(weights, hw_shape, radii[-1] + 1 if radii else 0, mask)
        last = weights[..., -1:]
        total = (last * q) @ (k.transpose(-2, -1) @ v1)  # [B, H, N, d + 1]
        if radii:
            maps = [x.flatten(0, 1).unflatten(1, hw_shape) for x in (q, k, v1, weights - last)]
            near = _near(radii, *maps)
            total = total + near.flatten(1, 2).unflatten(0, (-1, heads))
        return (total[..., :-1] / (total[..., -1:] + options.eps)).to(out_dtype)


def _bounded_radii(hw_shape: Tuple[int, int], radii: Sequence[int]) -> Sequence[int]:
    """Return the radii that do not cover the map; raise ValueError for a too large graph."""
    if is_static(*hw_shape):
        # A square that covers the map is the map: its weight joins the last one.
        return [r for r in radii if r < max(hw_shape) - 1]
    rows = 2 * radii[-1] + 1 if radii else 0
    if rows > MAX_ROWS:
        raise ValueError(
            f'ripple attention: its groups reach over {rows} rows; a graph of dynamic size has '
            f'operations for each row and supports at most {MAX_ROWS}. Export it with torch.export '
            'at a fixed size, or use a smaller max_distance'
        )
    return radii


def _near(radii: Sequence[int], q: Tensor, k: Tensor, v: Tensor, weights: Tensor) -> Tensor:
    """Sum ``w_g(i, m)(i) q_i . k_m v_m`` over the tokens m within the last radius.

    All are maps (n, H, W, channels); the weights of the last group are unused.
    """
    height, width, reach = q.shape[1], q.shape[2], radii[-1]
    queries = _pieces(torch.cat([q, weights[..., :-1]], -1), 0)  # [n, H, pieces, M, m + G]
    around = _pieces(F.pad(torch.cat([k, v], -1), (0, 0, 0, 0, reach, reach)), reach)
    features = q.shape[-1]
    q, weights = queries[..., :features], queries[..., features:].permute(3, 0, 1, 2, 4)
    keys, values = around[..., :features].transpose(-2, -1), around[..., features:]
    groups = _group_masks(radii, q).unsqueeze(2).unsqueeze(2)  # [r + 1, M, 1, 1, G, K]
    total = None
    for away in range(reach + 1):
        local = (weights @ groups[away]).permute(1, 2, 3, 0, 4)  # [n, H, pieces, M, K]
        for start in sorted({reach - away, reach + away}):
            near, of_near = (x.narrow(1, start, height) for x in (keys, values))
            part = (local * (q @ near)) @ of_near  # [n, H, pieces, M, e]
            total = part if total is None else total + part
    assert total is not None
    place = torch.arange(width, device=q.device)
    return total[:, :, place // PIECE, place % PIECE]


def _group_masks(radii: Sequence[int], like: Tensor) -> Tensor:
    """Return 1 where a key belongs to a group, else 0, by distance of rows: (r + 1, M, G, K)."""
    reach = radii[-1]
    across = axis_distance((0, PIECE), (-reach, PIECE + reach), like.device)  # [M, K]
    down = torch.arange(reach + 1, device=like.device)
    distance = torch.maximum(across, down[:, None, None])  # [r + 1, M, K]
    # Nested squares; tracing would warn about a tensor of the radii.
    inside = torch.stack([distance <= radius for radius in radii], 2).to(like.dtype)
    return inside - F.pad(inside[:, :, :-1], (0, 0, 1, 0))


def _pieces(x: Tensor, reach: int) -> Tensor:
    """Cut (n, H, W, c) into (n, H, pieces, M + 2 reach, c), ``reach`` more tokens on each side."""
    # A compiler specializes a size that may be 1: always at least two pieces.
    more = PIECE * (not is_static(x.shape[2]))
    start = torch.arange(0, x.shape[2] + more, PIECE, device=x.device)
    x = F.pad(x, (0, 0, reach, reach + more + PIECE - 1))
    # By index: a compiler cannot prove that a reshape by the number of pieces is valid.
    return x[:, :, start[:, None] + torch.arange(PIECE + 2 * reach, device=x.device)]
