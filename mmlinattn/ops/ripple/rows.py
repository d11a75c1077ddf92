"""Ripple attention in plain operations: for graphs that run elsewhere, on maps of any size.

As in :mod:`.tile` the weight of the last group is taken off everywhere, and what is left of the
others reaches no further than the last radius. A row of the map is cut into short pieces of
queries; each meets the keys around it in one row after the other, in two dense products. Nothing
is written in place, and nothing needs the map's size as a Python integer.
"""

from typing import Sequence, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..common.numerics import accumulation_dtype, is_static, no_autocast
from .groups import axis_distance, drop_empty_last, group_radii
from .options import RippleOptions
from .weights import finished_weights

PIECE = 8  # queries
# Rows around a query above which a graph for maps of any size has too many operations.
MOST_ROWS = 127


def ripple_rows(q: Tensor, k: Tensor, v: Tensor, weights: Tensor, options: RippleOptions) -> Tensor:
    """See :func:`mmlinattn.ops.ripple_attention`; O(N r^2 (m + d)) time for a last radius r."""
    out_dtype, heads = v.dtype, q.shape[1]
    hw_shape, mask = options.hw_shape, options.key_padding_mask
    weights = finished_weights(weights, options.stick)
    dtype = accumulation_dtype(out_dtype)
    radii = _within(hw_shape, group_radii(weights.shape[-1] - 1, options.groups))
    with no_autocast(q):
        q, k, weights = q.to(dtype), k.to(dtype), weights.to(dtype)
        if mask is not None:
            k = k.masked_fill(mask[:, None, :, None], 0)
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


def _within(hw_shape: Tuple[int, int], radii: Sequence[int]) -> Sequence[int]:
    """The radii that leave something beyond them, where the size of the map is known.

    Raises:
        ValueError: too many rows for a map of any size.
    """
    if is_static(*hw_shape):
        # A square that reaches all over the map is the map: its weight joins the last one.
        return [r for r in radii if r < max(hw_shape) - 1]
    rows = 2 * radii[-1] + 1 if radii else 0
    if rows > MOST_ROWS:
        raise ValueError(
            f'ripple attention: its groups reach over {rows} rows, and a graph for maps of any '
            f'size has operations for each; at most {MOST_ROWS} are exported. Export it by '
            'torch.export at a fixed size, or with a smaller max_distance'
        )
    return radii


def _near(radii: Sequence[int], q: Tensor, k: Tensor, v: Tensor, weights: Tensor) -> Tensor:
    """``sum_m w_g(i, m)(i) q_i . k_m v_m`` over the tokens within the last radius.

    Args:
        q, k: (n, H, W, m).
        v: (n, H, W, e).
        weights: (n, H, W, G + 1); those of the last group are not read.

    Returns:
        (n, H, W, e).
    """
    height, width, reach = q.shape[1], q.shape[2], radii[-1]
    queries = _pieces(torch.cat([q, weights[..., :-1]], -1), 0)  # [n, H, pieces, M, m + G]
    around = _pieces(F.pad(torch.cat([k, v], -1), (0, 0, 0, 0, reach, reach)), reach)
    features = q.shape[-1]
    q, weights = queries[..., :features], queries[..., features:].permute(3, 0, 1, 2, 4)
    keys, values = around[..., :features].transpose(-2, -1), around[..., features:]
    groups = _groups_of_rows(radii, q).unsqueeze(2).unsqueeze(2)  # [r + 1, M, 1, 1, G, K]
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


def _groups_of_rows(radii: Sequence[int], like: Tensor) -> Tensor:
    """1 where a key is of a group, 0 elsewhere, for keys in a row so far from that of the queries:
    (r + 1, M, G, K)."""
    reach = radii[-1]
    across = axis_distance((0, PIECE), (-reach, PIECE + reach), like.device)  # [M, K]
    down = torch.arange(reach + 1, device=like.device)
    distance = torch.maximum(across, down[:, None, None])  # [r + 1, M, K]
    # Nested squares. A trace would warn of a tensor of the radii.
    inside = torch.stack([distance <= radius for radius in radii], 2).to(like.dtype)
    return inside - F.pad(inside[:, :, :-1], (0, 0, 1, 0))


def _pieces(x: Tensor, reach: int) -> Tensor:
    """Pieces of rows with ``reach`` tokens more on either side, (n, H, W, c) to
    (n, H, pieces, M + 2 reach, c)."""
    # To a compiler a size that may be 1 is a case of its own: at least two pieces.
    more = PIECE * (not is_static(x.shape[2]))
    start = torch.arange(0, x.shape[2] + more, PIECE, device=x.device)
    x = F.pad(x, (0, 0, reach, reach + more + PIECE - 1))
    # By index, since a compiler cannot prove that a reshape by the number of pieces fits.
    return x[:, :, start[:, None] + torch.arange(PIECE + 2 * reach, device=x.device)]
