"""Ripple attention by tiles: exact, O(N d) memory, no cumulative sums.

The weight of the last group is taken off everywhere: ``w_g = w_R + (w_g - w_R)``. The first term
is one global linear attention. The second vanishes at distance R and beyond, so a tile of queries
meets only the keys of its halo: two dense products a tile. Scores live in one chunk of tiles at a
time; the backward pass computes them again.
"""

from typing import Iterator, NamedTuple, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..numerics import accumulation_dtype, no_autocast
from .groups import axis_distance, chebyshev_distance

# Tokens along the side of a tile and scores in a chunk of tiles, both measured: 6 heads, d = 32,
# R = 4, 128 x 128 tokens on two CPU cores with 1 MiB of L2 cache each.
TILE = 8
CPU_CHUNK = 2**19
ACCELERATOR_CHUNK = 2**26


def ripple_tile(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    weights: Tensor,
    hw_shape: Tuple[int, int],
    key_padding_mask: Optional[Tensor] = None,
    eps: float = 1e-6,
) -> Tensor:
    """See :func:`mmlinattn.ops.ripple_attention`; Chebyshev groups only."""
    out_dtype, batch_heads = v.dtype, q.shape[:2]
    dtype = accumulation_dtype(out_dtype)
    with no_autocast(q):
        k = k.to(dtype)
        if key_padding_mask is not None:
            k = k.masked_fill(key_padding_mask[:, None, :, None], 0)
        maps = [
            x.to(dtype).flatten(0, 1).unflatten(1, hw_shape) for x in (q, k, v, weights)
        ]  # [B * heads, height, width, channels]
        out = RippleTile.apply(*maps, eps)
        return out.flatten(1, 2).unflatten(0, batch_heads).to(out_dtype)


class RippleTile(torch.autograd.Function):
    """Maps q, k (n, H, W, m), v (n, H, W, d), weights (n, H, W, R + 1) to (n, H, W, d)."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, weights: Tensor, eps: float) -> Tensor:
        tiles = Tiles(weights)
        v1 = F.pad(v, (0, 1), value=1.0)  # the normaliser is the attention to ones
        state = k.flatten(1, 2).transpose(1, 2) @ v1.flatten(1, 2)  # [n, m, d + 1]
        out, inverse = torch.empty_like(v1[..., :-1]), torch.empty_like(v1[..., :1])
        for chunk in tiles.chunks():
            queries, spatial = tiles.cut(q, chunk), tiles.cut(weights, chunk)
            keys, values = tiles.cut_halos(k, chunk), tiles.cut_halos(v1, chunk)
            scores = (queries @ keys.transpose(1, 2)).mul_(tiles.local_weights(spatial))
            total = (scores @ values).view(chunk.heads, -1, v1.shape[-1])
            far = (queries * spatial[..., -1:]).view(chunk.heads, -1, q.shape[-1])
            total.baddbmm_(far, state[chunk.slice])
            normaliser = (total[..., -1:] + eps).reciprocal_()
            tiles.paste(total[..., :-1] * normaliser, chunk, out)
            tiles.paste(normaliser, chunk, inverse)
        ctx.save_for_backward(q, k, v1, weights, state, out, inverse)
        return out

    @staticmethod
    def backward(ctx, grad_out: Tensor) -> Tuple[Optional[Tensor], ...]:
        with no_autocast(grad_out):
            return (*_backward(grad_out, *ctx.saved_tensors), None)


def _backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v1: Tensor,
    weights: Tensor,
    state: Tensor,
    out: Tensor,
    inverse: Tensor,
) -> Tuple[Tensor, ...]:
    tiles = Tiles(weights)
    grad_q, grad_weights = q.new_empty(q.shape), weights.new_empty(weights.shape)
    grad_k, grad_v1 = k.new_zeros(k.shape), v1.new_zeros(v1.shape)
    grad_state = torch.zeros_like(state)
    for chunk in tiles.chunks():
        queries, spatial = tiles.cut(q, chunk), tiles.cut(weights, chunk)
        keys, values = tiles.cut_halos(k, chunk), tiles.cut_halos(v1, chunk)
        grad = tiles.cut(grad_out, chunk) * tiles.cut(inverse, chunk)
        grad_normaliser = -(grad * tiles.cut(out, chunk)).sum(-1, keepdim=True)
        grad = torch.cat([grad, grad_normaliser], -1)  # of the sums over v1, [C, M, d + 1]

        # The global term.
        far = queries * spatial[..., -1:]
        per_head = grad.view(chunk.heads, -1, grad.shape[-1])
        grad_state[chunk.slice].baddbmm_(
            far.view(chunk.heads, -1, far.shape[-1]).transpose(1, 2), per_head
        )
        grad_far = (per_head @ state[chunk.slice].transpose(1, 2)).view_as(queries)

        # The local term.
        kernel = queries @ keys.transpose(1, 2)
        grad_scores = grad @ values.transpose(1, 2)
        local = tiles.local_weights(spatial)
        grad_local = tiles.sum_groups(kernel * grad_scores)
        scores, grad_kernel = kernel.mul_(local), grad_scores.mul_(local)
        tiles.paste_halos(grad_kernel.transpose(1, 2) @ queries, chunk, grad_k)
        tiles.paste_halos(scores.transpose(1, 2) @ grad, chunk, grad_v1)

        tiles.paste((grad_kernel @ keys).addcmul_(grad_far, spatial[..., -1:]), chunk, grad_q)
        grad_last = (queries * grad_far).sum(-1, keepdim=True)
        grad_last = grad_last - grad_local.sum(-1, keepdim=True)
        tiles.paste(torch.cat([grad_local, grad_last], -1), chunk, grad_weights)
    grad_k.flatten(1, 2).baddbmm_(v1.flatten(1, 2), grad_state.transpose(1, 2))
    grad_v1.flatten(1, 2).baddbmm_(k.flatten(1, 2), grad_state)
    return grad_q, grad_k, grad_v1[..., :-1], grad_weights


class Axis(NamedTuple):
    """Tiles along one axis of the map."""

    size: int  # tokens of the map
    tile: int  # tokens of a tile
    pad: int  # tokens of a halo on either side of its tile

    @staticmethod
    def plan(size: int, reach: int) -> 'Axis':
        """Even tiles; a single one, without a halo, where the halo would be the map anyway."""
        if size <= TILE + 2 * reach:
            return Axis(size, size, 0)
        return Axis(size, -(-size // -(-size // TILE)), reach)

    @property
    def count(self) -> int:
        return -(-self.size // self.tile)

    @property
    def halo(self) -> int:
        return self.tile + 2 * self.pad

    def distance(self, device: torch.device) -> Tensor:
        return axis_distance((0, self.tile), (-self.pad, self.tile + self.pad), device)


class Chunk(NamedTuple):
    """Rows of tiles ``start`` to ``stop`` of the ``heads`` maps from ``first`` on."""

    first: int
    heads: int
    start: int
    stop: int

    @property
    def slice(self) -> slice:
        return slice(self.first, self.first + self.heads)


class Tiles:
    """Cuts maps (n, H, W, c) into tiles (C, M, c) and halos (C, K, c), and puts them back."""

    def __init__(self, weights: Tensor) -> None:
        self.maps, height, width, num_groups = weights.shape
        reach = max(num_groups - 2, 0)
        self.y, self.x = Axis.plan(height, reach), Axis.plan(width, reach)
        device = weights.device
        distance = chebyshev_distance(self.y.distance(device), self.x.distance(device))
        group = torch.arange(num_groups - 1, device=device)
        self.in_group = (distance[:, None] == group[:, None]).to(weights.dtype)  # [M, R, K]
        self.budget = CPU_CHUNK if device.type == 'cpu' else ACCELERATOR_CHUNK

    def chunks(self) -> Iterator[Chunk]:
        row = self.x.count * self.in_group.shape[0] * self.in_group.shape[2]  # scores
        heads = min(max(self.budget // (row * self.y.count), 1), self.maps)
        rows = self.y.count if heads > 1 else min(max(self.budget // row, 1), self.y.count)
        for first in range(0, self.maps, heads):
            for start in range(0, self.y.count, rows):
                yield Chunk(
                    first,
                    min(heads, self.maps - first),
                    start,
                    min(start + rows, self.y.count),
                )

    def cut(self, maps: Tensor, chunk: Chunk) -> Tensor:
        """Tiles of a chunk, (C, M, c); what lies beyond the map is 0."""
        y, x = self.y, self.x
        rows = maps[chunk.slice, chunk.start * y.tile : chunk.stop * y.tile]
        below, right = (chunk.stop - chunk.start) * y.tile - rows.shape[1], x.count * x.tile - x.size
        if below or right:
            rows = F.pad(rows, (0, 0, 0, right, 0, below))
        tiles = rows.unflatten(2, (x.count, x.tile)).unflatten(1, (-1, y.tile))
        return tiles.transpose(2, 3).reshape(-1, y.tile * x.tile, maps.shape[-1])

    def paste(self, tiles: Tensor, chunk: Chunk, maps: Tensor) -> None:
        """Inverse of :meth:`cut`, into ``maps``."""
        y, x = self.y, self.x
        tiles = tiles.view(chunk.heads, -1, x.count, y.tile, x.tile, maps.shape[-1])
        rows = tiles.transpose(2, 3).flatten(3, 4).flatten(1, 2)
        target = maps[chunk.slice, chunk.start * y.tile : chunk.stop * y.tile]
        target.copy_(rows[:, : target.shape[1], : x.size])

    def cut_halos(self, maps: Tensor, chunk: Chunk) -> Tensor:
        """Halos of the tiles of a chunk, (C, K, c); what lies beyond the map is 0."""
        y, x = self.y, self.x
        top, bottom = chunk.start * y.tile - y.pad, chunk.stop * y.tile + y.pad
        rows = maps[chunk.slice, max(top, 0) : bottom]
        above = max(-top, 0)
        below = bottom - top - above - rows.shape[1]
        right = x.count * x.tile + x.pad - x.size
        if above or below or x.pad or right:
            rows = F.pad(rows, (0, 0, x.pad, right, above, below))
        halos = rows.unfold(1, y.halo, y.tile).unfold(2, x.halo, x.tile)
        return halos.permute(0, 1, 2, 4, 5, 3).reshape(-1, y.halo * x.halo, maps.shape[-1])

    def paste_halos(self, halos: Tensor, chunk: Chunk, maps: Tensor) -> None:
        """Adds overlapping halos to ``maps``: the adjoint of :meth:`cut_halos`."""
        y, x, count = self.y, self.x, chunk.stop - chunk.start
        halos = halos.view(chunk.heads, count, x.count, y.halo, x.halo, maps.shape[-1])
        halos = halos.transpose(2, 3)
        height, width = ((n + -(-a.halo // a.tile) - 1) * a.tile for n, a in ((count, y), (x.count, x)))
        rows = maps.new_zeros(chunk.heads, height, width, maps.shape[-1])
        # Parts of halos no larger than a tile do not overlap.
        for i in range(0, y.halo, y.tile):
            for j in range(0, x.halo, x.tile):
                part = halos[:, :, i : i + y.tile, :, j : j + x.tile]
                into = rows[:, i : i + count * y.tile, j : j + x.count * x.tile]
                into = into.unflatten(2, (x.count, x.tile)).unflatten(1, (count, y.tile))
                into[:, :, : part.shape[2], :, : part.shape[4]] += part
        top, bottom = chunk.start * y.tile - y.pad, chunk.stop * y.tile + y.pad
        target = maps[chunk.slice, max(top, 0) : bottom]
        above = max(-top, 0)
        target += rows[:, above : above + target.shape[1], x.pad : x.pad + x.size]

    def local_weights(self, weights: Tensor) -> Tensor:
        """``w_g - w_R`` of each query and key of its halo: (C, M, R + 1) to (C, M, K)."""
        local = (weights[..., :-1] - weights[..., -1:]).transpose(0, 1)
        return (local @ self.in_group).transpose(0, 1)

    def sum_groups(self, x: Tensor) -> Tensor:
        """Sums over the keys of each group but the last: (C, M, K) to (C, M, R)."""
        return (x.transpose(0, 1) @ self.in_group.transpose(1, 2)).transpose(0, 1)
