"""Ripple attention by tiles: exact, O(N d) memory, no cumulative sums.

The weight of the last group is subtracted everywhere: ``w_g = w_R + (w_g - w_R)``. The first term
is one global linear attention. The second is 0 at distance R and beyond, so a tile of queries
attends only to the keys of its halo: two dense products per tile. Scores exist for one chunk of
tiles at a time; the backward pass recomputes them. Products are float32 for half types: gradients
are small differences, of which rounded factors would leave nothing.
"""

import functools
import math
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor

from ..common.first_derivative import first_derivative_only
from ..common.numerics import (
    accumulation_dtype,
    chunk_budget,
    constant,
    is_tracing,
    needs_gradient,
    no_autocast,
    zero_padding,
)
from .groups import RippleOptions, axis_distance, chebyshev_distance, drop_empty_last

# Tokens per tile along each axis, the fastest on a CPU of (1, 8) to (4, 8) and (2, 8) to (2, 16).
TILE = (2, 8)


def ripple_tile(q: Tensor, k: Tensor, v: Tensor, weights: Tensor, options: RippleOptions) -> Tensor:
    """Compute :func:`mmlinattn.ops.ripple_attention`; Chebyshev groups only."""
    out_dtype, dtype = v.dtype, accumulation_dtype(v.dtype)
    (height, width), mask, tracing = options.hw_shape, options.key_padding_mask, is_tracing()
    if mask is not None or max(height, width) // 2 < weights.shape[-1] - 1:
        weights = drop_empty_last(weights, options.hw_shape, weights.shape[-1] - 1, mask)
    batch, heads, count, channels = q.shape
    shape = batch * heads, height, width
    with no_autocast(q, tracing):
        if dtype != out_dtype:
            q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
        k = k if mask is None else zero_padding(k, mask)
        weights = weights if weights.dtype == dtype else weights.to(dtype)
        q, k = q.reshape(*shape, channels), k.reshape(*shape, channels)
        v = v.reshape(*shape, v.shape[-1])
        weights = weights.reshape(*shape, weights.shape[-1])
        if tracing or needs_gradient(q, k, v, weights):
            out = RippleTile.apply(q, k, v, weights, options.eps)
        else:
            out, *_ = _forward(_Tiles(weights, False), q, k, v, weights, options.eps, False)
        out = out.view(batch, heads, count, out.shape[-1])
        return out if dtype == out_dtype else out.to(out_dtype)


class RippleTile(torch.autograd.Function):
    """Maps q, k (n, H, W, m), v (n, H, W, d), weights (n, H, W, R + 1) to (n, H, W, d)."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, weights: Tensor, eps: float) -> Tensor:
        tiles = _Tiles(weights, is_tracing())
        out, state, inverse = _forward(tiles, q, k, v, weights, eps, True)
        ctx.save_for_backward(q, k, v, weights, state, out, inverse)
        return out

    @staticmethod
    @first_derivative_only
    def backward(ctx, grad_out: Tensor) -> Tuple[Optional[Tensor], ...]:
        with no_autocast(grad_out):
            return (*_backward(grad_out, ctx.saved_tensors), None)


def _forward(
    tiles: '_Tiles', q: Tensor, k: Tensor, v: Tensor, weights: Tensor, eps: float, training: bool
) -> Tuple[Tensor, Tensor, Tensor]:
    """Return the output, the state of the global term, and for training ``1 / normaliser``."""
    channels, size = q.shape[-1], v.shape[-1]
    keys = k.flatten(1, 2).mT
    # The normaliser is the attention to values of 1, stored as one more channel.
    sums = keys @ v.flatten(1, 2)
    state = torch.cat([sums, keys.sum(-1, keepdim=True)], -1)  # [n, m, d + 1]
    out = v.new_empty(v.shape)
    inverse = v.new_empty(*v.shape[:-1], 1) if training else out
    for chunk in tiles.chunks:
        queries = tiles.cut('queries', q, chunk)
        spatial = tiles.cut('spatial', weights, chunk)
        keys, values = tiles.halos(k, chunk), tiles.halos(v, chunk, 1)
        scores = tiles.product('scores', queries, keys.mT)
        scores *= tiles.local_weights(spatial)
        total = tiles.product('total', scores, values)
        queries *= spatial[..., -1:]
        queries = queries.view(chunk.heads, -1, channels)
        total.view(chunk.heads, -1, size + 1).baddbmm_(queries, state[chunk.maps])
        normaliser = (total[..., -1:] + eps).reciprocal_()
        part = total[..., :-1]
        part *= normaliser
        tiles.paste(part, chunk, out)
        if training:
            tiles.paste(normaliser, chunk, inverse)
    return out, state, inverse


def _backward(grad_out: Tensor, saved: Tuple[Tensor, ...]) -> Tuple[Tensor, ...]:
    """Return the gradients of q, k, v and the weights."""
    q, k, v, weights, state, out, inverse = saved
    tiles = _Tiles(weights, is_tracing())
    channels, size = q.shape[-1], v.shape[-1]
    grad_q, grad_weights = q.new_empty(q.shape), weights.new_empty(weights.shape)
    grad_k, grad_v = k.new_zeros(k.shape), v.new_zeros(v.shape)
    grad_state = torch.zeros_like(state)
    for chunk in tiles.chunks:
        queries = tiles.cut('queries', q, chunk)
        spatial = tiles.cut('spatial', weights, chunk)
        keys, values = tiles.halos(k, chunk), tiles.halos(v, chunk, 1)
        grad = tiles.cut('grad', grad_out, chunk)
        grad *= tiles.cut('inverse', inverse, chunk)
        grad_normaliser = tiles.cut('out', out, chunk).mul_(grad).sum(-1, keepdim=True)
        # Gradient of the sums over values, [C, M, d + 1].
        grad = torch.cat([grad, grad_normaliser.neg_()], -1)

        # The global term.
        last = spatial[..., -1:]
        per_head = grad.view(chunk.heads, -1, size + 1)
        far = (queries * last).view(chunk.heads, -1, channels)
        grad_state[chunk.maps] += far.mT @ per_head
        grad_far = (per_head @ state[chunk.maps].mT).view(queries.shape)

        # The local term.
        kernel = tiles.product('scores', queries, keys.mT)
        grad_scores = tiles.product('grad_scores', grad, values.mT)
        grad_local = tiles.sum_groups(kernel, grad_scores)
        local = tiles.local_weights(spatial)
        kernel *= local
        grad_scores *= local
        grad_queries = tiles.product('grad_queries', grad_scores, keys)
        tiles.paste(grad_queries.addcmul_(grad_far, last), chunk, grad_q)
        tiles.add_halos(grad_scores, queries, chunk, grad_k)
        tiles.add_halos(kernel, grad[..., :-1], chunk, grad_v)

        grad_last = (queries * grad_far).sum(-1, keepdim=True)
        grad_last -= grad_local.sum(-1, keepdim=True)
        tiles.paste(torch.cat([grad_local, grad_last], -1), chunk, grad_weights)
    grad_sums, grad_counts = grad_state[..., :-1], grad_state[..., -1]
    grad_k.flatten(1, 2).baddbmm_(v.flatten(1, 2), grad_sums.mT)
    grad_k += grad_counts[:, None, None]
    grad_v.flatten(1, 2).baddbmm_(k.flatten(1, 2), grad_sums)
    return grad_q, grad_k, grad_v, grad_weights


class _Axis(NamedTuple):
    """Tiles along one axis of the map, in tokens."""

    size: int  # of the map
    tile: int
    pad: int  # of a halo on either side of its tile
    tiles: int  # number of tiles
    halo: int
    overhang: int  # number of tiles that the halo of the last tile covers beyond it
    padded: int  # all tiles, with the overhang


def _axis(size: int, tile: int, reach: int) -> _Axis:
    """Choose even tiles, or one without halo if the map is hardly larger than a tile."""
    if size <= min(tile + 2 * reach, 2 * tile):
        tile, pad = size, 0
    else:
        tile, pad = -(-size // -(-size // tile)), min(reach, size - 1)
    tiles, overhang = -(-size // tile), -(-2 * pad // tile)
    return _Axis(size, tile, pad, tiles, tile + 2 * pad, overhang, (tiles + overhang) * tile)


class _Chunk(NamedTuple):
    """Some columns of tiles of some maps."""

    maps: slice
    heads: int
    columns: slice  # of the map, which may extend beyond it
    strips: int  # columns of tiles
    left: int  # first and last column of the map in their halos
    right: int
    before: int  # number of columns of the halos on either side of the map
    beyond: int


def _plan(
    num_maps: int, height: int, width: int, num_groups: int, budget: int
) -> Tuple[_Axis, _Axis, List[_Chunk]]:
    """Return the axes and the chunks of maps, whose scores have ``budget`` elements."""
    reach = max(num_groups - 2, 0)
    y, x = _axis(height, TILE[0], reach), _axis(width, TILE[1], reach)
    strip = y.padded * x.tile * y.halo * x.halo  # scores
    heads = max(min(budget // (strip * x.tiles), num_maps), 1)
    columns = x.tiles if heads > 1 else min(max(budget // strip, 1), x.tiles)
    chunks = []
    for first in range(0, num_maps, heads):
        for start in range(0, x.tiles, columns):
            stop, last = min(start + columns, x.tiles), min(first + heads, num_maps)
            low, high = start * x.tile - x.pad, stop * x.tile + x.pad
            left, right = max(low, 0), min(high, width)
            part = slice(first, last), last - first, slice(start * x.tile, stop * x.tile)
            chunks.append(_Chunk(*part, stop - start, left, right, left - low, high - right))
    return y, x, chunks


_cached_plan = functools.lru_cache(maxsize=64)(_plan)


def in_group(
    tiles: Sequence[int], pads: Sequence[int], groups: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Return 1 where the key of a halo is in a group except the last, else 0: (M, R, K)."""
    axes = [axis_distance((0, tile), (-pad, tile + pad), device) for tile, pad in zip(tiles, pads)]
    group = torch.arange(groups, device=device)
    return (chebyshev_distance(*axes)[:, None] == group[:, None]).to(dtype)


class _Tiles:
    """Tiles (C, M, c) and halos (C, K, c) of maps (n, H, W, c), with the way back.

    A column of tiles with its halos is one strip of memory. Successive halos overlap in it, and
    matrix products read them in place. A few tiles extend beyond the map, with queries of 0.
    """

    def __init__(self, weights: Tensor, tracing: bool) -> None:
        plan, device = _plan if tracing else _cached_plan, weights.device
        n, height, width, groups = weights.shape
        y, x, self.chunks = plan(n, height, width, groups, chunk_budget(device, True))
        self.y, self.x, self.single = y, x, len(self.chunks) == 1
        mask = (y.tile, x.tile), (y.pad, x.pad), groups - 1, weights.dtype
        large = y.tile * x.tile * groups * y.halo * x.halo >= 2**18
        self.in_group = constant(in_group, device, *mask, tracing=tracing or large)
        self._buffers: Dict[str, Tensor] = {}

    def cut(self, name: str, maps: Tensor, chunk: _Chunk) -> Tensor:
        """Cut the tiles of a chunk, (C, M, c), into the named buffer; 0 beyond the map."""
        y, x, count, channels = self.y, self.x, chunk.strips, maps.shape[-1]
        columns = maps[chunk.maps, :, chunk.columns]
        beyond = count * x.tile - columns.shape[2]
        if beyond:
            columns = torch.constant_pad_nd(columns, (0, 0, 0, beyond))
        strips = self.buffer(name, (chunk.heads, count, y.padded, x.tile, channels), maps)
        strips[:, :, y.size :] = 0
        columns = columns.view(chunk.heads, y.size, count, x.tile, channels)
        strips[:, :, : y.size] = columns.transpose(1, 2)
        return strips.view(-1, y.tile * x.tile, channels)

    def paste(self, tiles: Tensor, chunk: _Chunk, maps: Tensor) -> None:
        """Write tiles back into ``maps``, the inverse of :meth:`cut`."""
        target, shape = maps[chunk.maps, :, chunk.columns], (self.y.padded, self.x.tile, -1)
        strips = tiles.view(chunk.heads, chunk.strips, *shape)[:, :, : self.y.size]
        columns = strips.transpose(1, 2).flatten(2, 3)
        target[:] = columns[:, :, : target.shape[2]]

    def halos(self, maps: Tensor, chunk: _Chunk, ones: int = 0) -> Tensor:
        """Return the halos of the tiles of a chunk, (C, K, c), overlapping in memory.

        ``ones`` adds a channel of ones. Beyond the map are zeros, or all ones.
        """
        y, x, channels = self.y, self.x, maps.shape[-1] + ones
        inside = maps[chunk.maps, :, chunk.left : chunk.right]
        sides = (0, ones, chunk.before, chunk.beyond, y.pad, y.padded - y.pad - y.size)
        band = torch.constant_pad_nd(inside, sides, ones)
        count = chunk.heads * chunk.strips * (y.tiles + y.overhang)
        row = y.tile * x.halo * channels
        name = 'values' if ones else 'keys'
        memory = self.buffer(name, (count + y.overhang, row), maps)
        memory[count:] = 0
        strips = band.unfold(2, x.halo, x.tile).permute(0, 2, 1, 4, 3)
        memory[:count].view(strips.shape)[:] = strips
        return memory.as_strided((count, y.halo * x.halo, channels), (row, channels, 1))

    def add_halos(self, left: Tensor, right: Tensor, chunk: _Chunk, maps: Tensor) -> None:
        """Add the halos ``left^T right``, (C, M, K) and (C, M, c), to ``maps``."""
        y, x, channels, before = self.y, self.x, maps.shape[-1], chunk.before
        heads, count, width = chunk.heads, chunk.strips, chunk.right - chunk.left
        tiles, row = heads * count * (y.tiles + y.overhang), y.tile * x.halo
        shape = (tiles + y.overhang, row, channels)
        memory = self.buffer(f'grad_strips{channels}', shape, maps).zero_()
        # The rows of tiles of a halo are adjacent in memory: products accumulate in place.
        for i in range(y.overhang + 1):
            keys = left[:, :, i * row : (i + 1) * row].mT
            memory[i : i + tiles, : keys.shape[1]].baddbmm_(keys, right)
        strips = memory[:tiles].view(heads, count, y.padded, x.halo, channels).transpose(1, 2)
        shape = (heads, y.padded, before + width + chunk.beyond, channels)
        band = self.buffer(f'band{channels}', shape, maps).zero_()
        for j in range(0, x.halo, x.tile):
            part = strips[:, :, :, j : j + x.tile]
            for i in range(part.shape[3]):
                band[:, :, j + i : j + i + count * x.tile : x.tile] += part[:, :, :, i]
        inside = band[:, y.pad : y.pad + y.size, before : before + width]
        maps[chunk.maps, :, chunk.left : chunk.right] += inside

    def local_weights(self, weights: Tensor) -> Tensor:
        """Expand ``w_g - w_R`` to each query and key of its halo: (C, M, R + 1) to (C, M, K)."""
        local = (weights[..., :-1] - weights[..., -1:]).transpose(0, 1)
        return self.product('local_weights', local, self.in_group).transpose(0, 1)

    def sum_groups(self, left: Tensor, right: Tensor) -> Tensor:
        """Sum ``left * right`` over each group except the last: (C, M, K) to (C, M, R)."""
        both = torch.mul(left, right, out=self.buffer('both', left.shape, left))
        return (both.transpose(0, 1) @ self.in_group.mT).transpose(0, 1)

    def product(self, name: str, left: Tensor, right: Tensor) -> Tensor:
        """Compute ``left @ right`` into a buffer that the chunks share."""
        if self.single:
            return torch.bmm(left, right)
        shape = (*left.shape[:2], right.shape[-1])
        return torch.bmm(left, right, out=self.buffer(name, shape, left))

    def buffer(self, name: str, shape: Sequence[int], like: Tensor) -> Tensor:
        """Return a buffer that the chunks share; new memory costs more than some products."""
        if self.single:
            return like.new_empty(shape)
        size = math.prod(shape)
        if name not in self._buffers:
            # The first chunk is the largest.
            self._buffers[name] = like.new_empty(size)
        return self._buffers[name][:size].view(shape)
