"""Ripple attention on a clip: rings of Chebyshev distance over time, rows and columns."""

import math
from functools import partial
from typing import Any, List, Optional, Sequence

import torch
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ...models.layers import RippleAttention, TokenLayout
from ...ops.common.checks import check_qkv
from ...ops.common.dispatch import choose_backend
from ...ops.common.numerics import (
    accumulation_dtype,
    chunk_budget,
    needs_gradient,
    no_autocast,
    zero_padding,
)
from ...ops.ripple.groups import axis_distance, chebyshev_distance, drop_empty_last
from ...ops.ripple.tile import in_group

# Tokens of a tile along time, rows and columns.
TILE = (2, 2, 4)


def clip_ripple_attention(
    q: Tensor, k: Tensor, v: Tensor, weights: Tensor, *,
    clip_shape: Sequence[int], num_extra_tokens: int = 0, key_padding_mask: Optional[Tensor] = None,
    eps: float = 1e-6, backend: str = 'auto',
) -> Tensor:  # fmt: skip
    """Compute :func:`mmlinattn.ops.ripple_attention` on a clip.

    The distance of two tokens is the largest of their distances in frames, rows and columns. The
    last of the R + 1 groups holds all tokens at distance R or more. Extra tokens (class token) come
    first. As keys they belong to the last group; as queries they weight all tokens equally.

    ``'torch'`` adds one global linear attention and the dense products of small tiles of queries
    with the keys within distance R - 1. Time is O(N R^3 (m + d)), memory O(N (m + d)): the
    backward pass recomputes the scores.

    Args:
        q, k, v, key_padding_mask, eps: see :func:`mmlinattn.ops.ripple_attention`, E + N tokens.
        weights: (B, heads, N, R + 1), R >= 0, see :func:`mmlinattn.ops.stick_breaking`.
        clip_shape: (T, H, W) with T * H * W == N.
        num_extra_tokens: E.
        backend: ``'auto'``, ``'reference'`` (N x N) or ``'torch'``.

    Returns:
        (B, heads, E + N, d_v) in the dtype of ``v``.

    Raises:
        ValueError, TypeError, BackendError: see :func:`mmlinattn.ops.ripple_attention`.

    Example:
        >>> from mmlinattn.ops import stick_breaking
        >>> q, k, v = torch.rand(3, 2, 4, 1 + 4 * 6 * 5, 16)
        >>> weights = stick_breaking(torch.randn(2, 4, 4 * 6 * 5, 2))
        >>> shape = dict(clip_shape=(4, 6, 5), num_extra_tokens=1)
        >>> clip_ripple_attention(q, k, v, weights, **shape).shape
        torch.Size([2, 4, 121, 16])
    """
    check_qkv(q, k, v, key_padding_mask)
    shape, extra = tuple(clip_shape), num_extra_tokens
    if len(shape) != 3 or any(size < 1 for size in shape):
        raise ValueError(f'clip_shape must be three positive integers (T, H, W), got {clip_shape}')
    count = math.prod(shape)
    if extra < 0 or q.shape[2] != extra + count:
        tokens = f'{extra + count} tokens, q has {q.shape[2]}'
        raise ValueError(f'clip_shape={shape} and num_extra_tokens={extra} are {tokens}')
    if weights.dim() != 4 or weights.shape[:3] != (*q.shape[:2], count) or not weights.shape[3]:
        raise ValueError(
            f'weights must have shape (B, heads, N, R + 1) = ({q.shape[0]}, {q.shape[1]}, {count}, '
            f'R + 1) with R >= 0, got {tuple(weights.shape)}'
        )
    out_dtype, dtype = v.dtype, accumulation_dtype(v.dtype)
    backend = choose_backend('clip_ripple_attention', backend, q)
    attend = _reference if backend == 'reference' else _tiles
    with no_autocast(q):
        q, k, v, weights = (x.to(dtype) for x in (q, k, v, weights))
        k = zero_padding(k, key_padding_mask)
        if attend is _tiles and not extra:
            weights = drop_empty_last(weights, shape, weights.shape[-1] - 1, key_padding_mask)
        values = F.pad(v, (0, 1), value=1.0)  # the normaliser is the attention to ones
        total = attend(q, k, values, weights, shape, extra)
        return (total[..., :-1] / (total[..., -1:] + eps)).to(out_dtype)


def _reference(
    q: Tensor, k: Tensor, values: Tensor, weights: Tensor, shape: Sequence[int], extra: int
) -> Tensor:
    """Return sums of weighted values by the definition."""
    reach = weights.shape[-1] - 1
    axes = [axis_distance((0, n), (0, n), q.device) for n in shape]
    group = chebyshev_distance(*axes).clamp(max=reach)
    spatial = weights.gather(-1, group.expand(*q.shape[:2], -1, -1))
    spatial = torch.cat([weights[..., -1:].expand(*weights.shape[:3], extra), spatial], -1)
    spatial = F.pad(spatial, (0, 0, extra, 0), value=1.0)
    return (spatial * (q @ k.mT)) @ values


def _tiles(
    q: Tensor, k: Tensor, values: Tensor, weights: Tensor, shape: Sequence[int], extra: int
) -> Tensor:
    """Return sums of weighted values: all tokens with the last weight, and near ones with more."""
    last = F.pad(weights[..., -1:], (0, 0, extra, 0), value=1.0)
    total = last * (q @ (k.mT @ values))
    near = weights[..., :-1] - weights[..., -1:]  # [B, heads, N, R]
    if not near.numel():
        return total
    tokens = *(x[:, :, extra:] for x in (q, k, values)), near
    local = _near(*(x.flatten(0, 1).unflatten(1, shape) for x in tokens))
    local = local.flatten(1, 3).unflatten(0, q.shape[:2])
    return total + F.pad(local, (0, 0, extra, 0))


def _near(q: Tensor, k: Tensor, values: Tensor, near: Tensor) -> Tensor:
    """Return the sums over keys within distance R - 1, for maps (n, T, H, W, channels)."""
    shape, reach = q.shape[1:4], near.shape[-1]
    tiles = [min(tile, size) for tile, size in zip(TILE, shape)]
    counts = [-(-size // tile) for size, tile in zip(shape, tiles)]
    pads = [min(reach, size) - 1 for size in shape]
    beyond = [count * tile - size for count, tile, size in zip(counts, tiles, shape)]
    rings = in_group(tiles, pads, reach, q.dtype, q.device)  # [M, R, K]

    def padded(x: Tensor, around: Sequence[int]) -> Tensor:
        sides: List[int] = [0, 0]
        for pad, more in zip(reversed(around), reversed(beyond)):
            sides += [pad, pad + more]
        return F.pad(x, sides)

    def cut(x: Tensor, around: Sequence[int]) -> Tensor:
        for dim, (tile, pad) in enumerate(zip(tiles, around), 1):
            x = x.unfold(dim, tile + 2 * pad, tile)
        x = x.movedim(4, -1)  # [n, t, h, w, tile or halo, channels]
        return x.flatten(4, 6).flatten(0, 3)

    def attend(queries: Tensor, spatial: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        q, near = (cut(x, (0, 0, 0)) for x in (queries, spatial))
        k, v = (cut(x, pads) for x in (keys, values))
        local = (near.transpose(0, 1) @ rings).transpose(0, 1)  # [tiles, M, K]
        return (local * (q @ k.mT)) @ v

    queries, spatial = (padded(x, (0, 0, 0)) for x in (q, near))
    keys, around = (padded(x, pads) for x in (k, values))
    row = q.shape[0] * counts[1] * counts[2] * rings.shape[0] * rings.shape[2]
    step = max(chunk_budget(q.device, tiles=True) // row, 1)
    recorded = needs_gradient(q, k, values, near) and counts[0] > step

    def slabs(x: Tensor, pad: int) -> List[Tensor]:
        """Return the frames that each chunk of tiles reads."""
        ends = [
            (start * tiles[0], min(start + step, counts[0]) * tiles[0] + 2 * pad)
            for start in range(0, counts[0], step)
        ]
        if not recorded:
            return [x[:, first:last] for first, last in ends]
        # The gradient of a slice is as large as the clip: with a slice a chunk, quadratic.
        frames = x.split(1, 1)
        return [torch.cat(frames[first:last], 1) for first, last in ends]

    parts = (slabs(queries, 0), slabs(spatial, 0), slabs(keys, pads[0]), slabs(around, pads[0]))
    run = partial(checkpoint, attend, use_reentrant=False) if recorded else attend
    outs = [run(*args) for args in zip(*parts)]
    sizes = (q.shape[0], -1, counts[1], counts[2])
    out = torch.cat([x.unflatten(0, sizes).unflatten(4, tiles) for x in outs], 1)
    out = out.permute(0, 1, 4, 2, 5, 3, 6, 7).flatten(5, 6).flatten(3, 4).flatten(1, 2)
    return out[:, : shape[0], : shape[1], : shape[2]]


@MODELS.register_module()
class ClipRippleAttention(RippleAttention):
    """:class:`RippleAttention` whose distance on a clip is over frames, rows and columns.

    It has the parameters of :class:`RippleAttention`, and on a map its result. ``hw_shape`` is
    (T, H, W) of a clip or (H, W) of a map.

    Args:
        groups: ``'chebyshev'`` alone.
        backend: ``'auto'``, ``'reference'`` or ``'torch'``.
        args, kwargs: options of :class:`RippleAttention` but ``rotary`` and ``lepe``, which need
            a 2D map.

    Raises:
        ValueError: an option has another value; errors of :class:`RippleAttention`.

    Example:
        >>> attn = ClipRippleAttention(embed_dims=64, num_heads=2, max_distance=2)
        >>> attn(torch.randn(1, 4 * 6 * 5, 64), (4, 6, 5)).shape
        torch.Size([1, 120, 64])
    """

    backends = ('auto', 'reference', 'torch')
    unsupported_options = ('rotary', 'lepe')
    takes_clips = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.groups != 'chebyshev':
            raise ValueError(f"ClipRippleAttention needs groups='chebyshev', got {self.groups!r}")

    def token_layout(  # type: ignore[override]
        self, x: Tensor, hw_shape: Sequence[int], *args: Any, **kwargs: Any
    ) -> TokenLayout:
        if not isinstance(hw_shape, (tuple, list)) or len(hw_shape) != 3:
            return super().token_layout(x, hw_shape, *args, **kwargs)
        frames, height, width = hw_shape
        layout = super().token_layout(x, (frames * height, width), *args, **kwargs)
        return layout._replace(hw_shape=tuple(hw_shape))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout) -> Tensor:
        if len(layout.hw_shape) == 2:
            return super().attend(q, k, v, layout)
        q, k = self.feature_map(q, k, layout.key_padding_mask)
        return clip_ripple_attention(
            q, k, v.to(q.dtype), self.spatial_weights(layout.split_extra(v, 2)[1]),
            clip_shape=layout.hw_shape, num_extra_tokens=layout.num_extra_tokens,
            key_padding_mask=layout.key_padding_mask, eps=self.eps, backend=self.backend,
        ).to(v.dtype)  # fmt: skip
