"""Ripple attention by tiles: exact, O(N d) memory, no cumulative sums.

The weight of the last group is subtracted everywhere: ``w_g = w_R + (w_g - w_R)``. The first term
is one global linear attention. The second is 0 at distance R and beyond, so a tile of queries
attends only to the keys of its halo: two dense products per tile. Scores exist for one chunk of
tiles at a time; the backward pass recomputes them.
"""

import math
from typing import Dict, Iterator, NamedTuple, Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..common.first_derivative import first_derivative_only
from ..common.numerics import accumulation_dtype, chunk_budget, no_autocast, zero_padding
from .groups import axis_distance, chebyshev_distance, drop_empty_last
from .options import RippleOptions
from .weights import finished_weights

# Tokens per tile along each axis. Forward and backward of 6 heads, d = 32, R = 4, 128 x 128 tokens
# on one CPU core: 285 ms with (2, 8); (1, 8) 327, (4, 8) 340, (2, 12) 325, (2, 16) 326.
TILE = (2, 8)


def ripple_tile(q: Tensor, k: Tensor, v: Tensor, weights: Tensor, options: RippleOptions) -> Tensor:
    """Compute :func:`mmlinattn.ops.ripple_attention`; Chebyshev groups only."""
    out_dtype, batch_heads = v.dtype, q.shape[:2]
    dtype = accumulation_dtype(out_dtype)
    hw_shape, mask = options.hw_shape, options.key_padding_mask
    weights = finished_weights(weights, options.stick)
    weights = drop_empty_last(weights, hw_shape, weights.shape[-1] - 1, mask)
    with no_autocast(q):
        k = zero_padding(k.to(dtype), mask)
        maps = [
            x.to(dtype).flatten(0, 1).unflatten(1, hw_shape) for x in (q, k, v, weights)
        ]  # [B * heads, height, width, channels]
        out = RippleTile.apply(*maps, options.eps)
        return out.flatten(1, 2).unflatten(0, batch_heads).to(out_dtype)


class RippleTile(torch.autograd.Function):
    """Maps q, k (n, H, W, m), v (n, H, W, d), weights (n, H, W, R + 1) to (n, H, W, d)."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, weights: Tensor, eps: float) -> Tensor:
        tiles = Tiles(weights)
        keys, values = k.flatten(1, 2).transpose(1, 2), v.flatten(1, 2)
        # The normaliser is the attention to values of 1, stored as one more channel.
        state = torch.cat([keys @ values, keys.sum(-1, keepdim=True)], -1)  # [n, m, d + 1]
        out, inverse = v.new_empty(v.shape), v.new_empty(*v.shape[:-1], 1)
        for chunk in tiles.chunks():
            queries = tiles.cut('queries', q, chunk)
            spatial = tiles.cut('spatial', weights, chunk)
            keys, values = tiles.halos(k, chunk), tiles.halos(v, chunk, ones=True)
            scores = tiles.product('scores', queries, keys.transpose(1, 2))
            scores *= tiles.local_weights(spatial)
            total = tiles.product('total', scores, values)
            far = queries.mul_(spatial[..., -1:]).view(chunk.heads, -1, q.shape[-1])
            total.view(chunk.heads, -1, total.shape[-1]).baddbmm_(far, state[chunk.maps])
            normaliser = (total[..., -1:] + eps).reciprocal_()
            tiles.paste(total[..., :-1].mul_(normaliser), chunk, out)
            tiles.paste(normaliser, chunk, inverse)
        ctx.save_for_backward(q, k, v, weights, state, out, inverse)
        return out

    @staticmethod
    @first_derivative_only
    def backward(ctx, grad_out: Tensor) -> Tuple[Optional[Tensor], ...]:
        with no_autocast(grad_out):
            return (*_backward(grad_out, *ctx.saved_tensors), None)


def _backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    weights: Tensor,
    state: Tensor,
    out: Tensor,
    inverse: Tensor,
) -> Tuple[Tensor, ...]:
    tiles = Tiles(weights)
    grad_q, grad_weights = q.new_empty(q.shape), weights.new_empty(weights.shape)
    grad_k, grad_v = k.new_zeros(k.shape), v.new_zeros(v.shape)
    grad_state = torch.zeros_like(state)
    for chunk in tiles.chunks():
        queries = tiles.cut('queries', q, chunk)
        spatial = tiles.cut('spatial', weights, chunk)
        keys, values = tiles.halos(k, chunk), tiles.halos(v, chunk, ones=True)
        grad = tiles.cut('grad', grad_out, chunk).mul_(tiles.cut('inverse', inverse, chunk))
        grad_normaliser = -tiles.cut('out', out, chunk).mul_(grad).sum(-1, keepdim=True)
        grad = torch.cat(
            [grad, grad_normaliser], -1
        )  # gradient of the sums over values, [C, M, d + 1]

        # The global term.
        per_head = grad.view(chunk.heads, -1, grad.shape[-1])
        far = (queries * spatial[..., -1:]).view(chunk.heads, -1, queries.shape[-1])
        grad_state[chunk.maps] += far.transpose(1, 2) @ per_head
        grad_far = (per_head @ state[chunk.maps].transpose(1, 2)).view_as(queries)

        # The local term.
        kernel = tiles.product('scores', queries, keys.transpose(1, 2))
        grad_scores = tiles.product('grad_scores', grad, values.transpose(1, 2))
        grad_local = tiles.sum_groups(kernel, grad_scores)
        local = tiles.local_weights(spatial)
        scores, grad_kernel = kernel.mul_(local), grad_scores.mul_(local)
        grad_queries = tiles.product('grad_queries', grad_kernel, keys)
        tiles.paste(grad_queries.addcmul_(grad_far, spatial[..., -1:]), chunk, grad_q)
        tiles.add_halos(grad_kernel, queries, chunk, grad_k)
        tiles.add_halos(scores, grad[..., :-1], chunk, grad_v)

        grad_last = (queries * grad_far).sum(-1, keepdim=True)
        grad_last -= grad_local.sum(-1, keepdim=True)
        tiles.paste(torch.cat([grad_local, grad_last], -1), chunk, grad_weights)
    grad_sums, grad_counts = grad_state[..., :-1], grad_state[..., -1]
    grad_k.flatten(1, 2).baddbmm_(v.flatten(1, 2), grad_sums.transpose(1, 2))
    grad_k += grad_counts[:, None, None]
    grad_v.flatten(1, 2).baddbmm_(k.flatten(1, 2), grad_sums)
    return grad_q, grad_k, grad_v, grad_weights


class Axis(NamedTuple):
    """Tiles along one axis of the map."""

    size: int  # tokens of the map
    tile: int  # tokens of a tile
    pad: int  # tokens of a halo on either side of its tile

    @staticmethod
    def plan(size: int, tile: int, reach: int) -> 'Axis':
        """Choose even tiles, or one without halo if the map is hardly larger than a tile."""
        if size <= min(tile + 2 * reach, 2 * tile):
            return Axis(size, size, 0)
        return Axis(size, -(-size // -(-size // tile)), min(reach, size - 1))

    @property
    def tiles(self) -> int:
        return -(-self.size // self.tile)

    @property
    def halo(self) -> int:
        return self.tile + 2 * self.pad

    @property
    def overhang(self) -> int:
        """Number of tiles that the halo of the last tile covers beyond it."""
        return -(-2 * self.pad // self.tile)

    @property
    def padded(self) -> int:
        return (self.tiles + self.overhang) * self.tile

    def distance(self, device: torch.device) -> Tensor:
        return axis_distance((0, self.tile), (-self.pad, self.tile + self.pad), device)


class Chunk(NamedTuple):
    """Columns of tiles ``start`` to ``stop`` of the ``heads`` maps from ``first`` on."""

    first: int
    heads: int
    start: int
    stop: int

    @property
    def maps(self) -> slice:
        return slice(self.first, self.first + self.heads)


class Tiles:
    """Tiles (C, M, c) and halos (C, K, c) of maps (n, H, W, c), with the way back.

    A column of tiles with its halos is one strip of memory. Successive halos overlap in it, and
    matrix products read them in place. A few tiles extend beyond the map, with queries of 0.
    """

    def __init__(self, weights: Tensor) -> None:
        self.num_maps, height, width, num_groups = weights.shape
        reach = max(num_groups - 2, 0)
        self.y = Axis.plan(height, TILE[0], reach)
        self.x = Axis.plan(width, TILE[1], reach)
        device = weights.device
        distance = chebyshev_distance(self.y.distance(device), self.x.distance(device))
        group = torch.arange(num_groups - 1, device=device)
        self.in_group = (distance[:, None] == group[:, None]).to(weights.dtype)  # [M, R, K]
        self._buffers: Dict[str, Tensor] = {}
        self.budget = chunk_budget(device, tiles=True)

    def chunks(self) -> Iterator[Chunk]:
        y, x = self.y, self.x
        strip = y.padded * x.tile * y.halo * x.halo  # scores
        heads = max(min(self.budget // (strip * x.tiles), self.num_maps), 1)
        columns = x.tiles if heads > 1 else min(max(self.budget // strip, 1), x.tiles)
        for first in range(0, self.num_maps, heads):
            for start in range(0, x.tiles, columns):
                yield Chunk(
                    first,
                    min(heads, self.num_maps - first),
                    start,
                    min(start + columns, x.tiles),
                )

    def cut(self, name: str, maps: Tensor, chunk: Chunk) -> Tensor:
        """Cut the tiles of a chunk, (C, M, c), into the named buffer; 0 beyond the map."""
        y, x, count = self.y, self.x, chunk.stop - chunk.start
        columns = maps[chunk.maps, :, chunk.start * x.tile : chunk.stop * x.tile]
        beyond = count * x.tile - columns.shape[2]
        if beyond:
            columns = F.pad(columns, (0, 0, 0, beyond))
        shape = (chunk.heads, count, y.padded, x.tile, maps.shape[-1])
        strips = self.buffer(name, shape, maps)
        strips[:, :, y.size :] = 0
        strips[:, :, : y.size] = columns.unflatten(2, (count, x.tile)).transpose(1, 2)
        return strips.view(-1, y.tile * x.tile, maps.shape[-1])

    def paste(self, tiles: Tensor, chunk: Chunk, maps: Tensor) -> None:
        """Write tiles back into ``maps``, the inverse of :meth:`cut`."""
        y, x = self.y, self.x
        target = maps[chunk.maps, :, chunk.start * x.tile : chunk.stop * x.tile]
        strips = tiles.view(chunk.heads, -1, y.padded, x.tile, maps.shape[-1])[:, :, : y.size]
        target.copy_(strips.transpose(1, 2).flatten(2, 3)[:, :, : target.shape[2]])

    def halos(self, maps: Tensor, chunk: Chunk, ones: bool = False) -> Tensor:
        """Return the halos of the tiles of a chunk, (C, K, c), overlapping in memory.

        0 beyond the map. ``ones`` adds a channel of ones.
        """
        y, x, channels = self.y, self.x, maps.shape[-1] + ones
        band, inside, columns = self._band(maps, chunk, channels)
        band.fill_(1.0 if ones else 0.0)
        inside[..., : maps.shape[-1]] = maps[chunk.maps, :, columns]
        memory = self._strips('values' if ones else 'keys', chunk, band)
        tiles = memory.shape[0] - y.overhang
        memory[tiles:] = 0
        strips = band.unfold(2, x.halo, x.tile).permute(0, 2, 1, 4, 3)
        memory[:tiles].view(strips.shape).copy_(strips)
        return memory.as_strided(
            (tiles, y.halo * x.halo, channels), (memory.stride(0), channels, 1)
        )

    def add_halos(self, left: Tensor, right: Tensor, chunk: Chunk, maps: Tensor) -> None:
        """Add the halos ``left^T right``, (C, M, K) and (C, M, c), to ``maps``."""
        y, x, count = self.y, self.x, chunk.stop - chunk.start
        band, inside, columns = self._band(maps, chunk, maps.shape[-1])
        memory = self._strips('grad_strips', chunk, band).zero_()
        tiles = memory.shape[0] - y.overhang
        # The rows of tiles of a halo are adjacent in memory: products accumulate in place.
        for i in range(y.overhang + 1):
            keys = left[:, :, i * memory.shape[1] : (i + 1) * memory.shape[1]]
            memory[i : i + tiles, : keys.shape[2]].baddbmm_(keys.transpose(1, 2), right)
        strips = memory[:tiles].view(chunk.heads, count, y.padded, x.halo, -1).transpose(1, 2)
        band.zero_()
        for j in range(0, x.halo, x.tile):
            part = strips[:, :, :, j : j + x.tile]
            for i in range(part.shape[3]):
                band[:, :, j + i : j + i + count * x.tile : x.tile] += part[:, :, :, i]
        maps[chunk.maps, :, columns] += inside

    def _band(self, maps: Tensor, chunk: Chunk, channels: int) -> Tuple[Tensor, Tensor, slice]:
        """Return a buffer for the columns of a chunk with halos, its part on the map, and which."""
        y, x = self.y, self.x
        start, stop = chunk.start * x.tile - x.pad, chunk.stop * x.tile + x.pad
        shape = (chunk.heads, y.padded, stop - start, channels)
        band = self.buffer(f'band{channels}', shape, maps)
        columns = slice(max(start, 0), min(stop, x.size))
        inside = band[:, y.pad : y.pad + y.size, columns.start - start : columns.stop - start]
        return band, inside, columns

    def _strips(self, name: str, chunk: Chunk, like: Tensor) -> Tensor:
        """Return a buffer for the strips of a chunk, tile by tile, with room for the last halo."""
        y, x = self.y, self.x
        tiles = chunk.heads * (chunk.stop - chunk.start) * (y.tiles + y.overhang)
        shape = (tiles + y.overhang, y.tile * x.halo, like.shape[-1])
        return self.buffer(f'{name}{shape[-1]}', shape, like)

    def local_weights(self, weights: Tensor) -> Tensor:
        """Expand ``w_g - w_R`` to each query and key of its halo: (C, M, R + 1) to (C, M, K)."""
        local = (weights[..., :-1] - weights[..., -1:]).transpose(0, 1)
        return self.product('local_weights', local, self.in_group).transpose(0, 1)

    def sum_groups(self, left: Tensor, right: Tensor) -> Tensor:
        """Sum ``left * right`` over each group except the last: (C, M, K) to (C, M, R)."""
        both = torch.mul(left, right, out=self.buffer('both', left.shape, left))
        return (both.transpose(0, 1) @ self.in_group.transpose(1, 2)).transpose(0, 1)

    def product(self, name: str, left: Tensor, right: Tensor) -> Tensor:
        """Compute ``left @ right`` into a buffer that the chunks share."""
        shape = (*left.shape[:2], right.shape[-1])
        return torch.bmm(left, right, out=self.buffer(name, shape, left))

    def buffer(self, name: str, shape: Sequence[int], like: Tensor) -> Tensor:
        """Return a buffer that the chunks share; new memory costs more than some products."""
        size = math.prod(shape)
        if name not in self._buffers:
            self._buffers[name] = like.new_empty(size)  # the first chunk is the largest
        return self._buffers[name][:size].view(shape)
