"""Ripple attention by tiles: scores and spatial weights stay in registers.

As in the portable form the last weight is taken off everywhere, ``w_g = w_R + (w_g - w_R)``: the
first term reads the sums of linear attention, the second ends at distance R, so a tile of 8 x 8
queries meets the keys of its halo. The backward pass goes over tiles of queries for their
gradients and over tiles of keys for theirs; no two programs add to the same place.

Normalisers and sums are of the mean over all keys, "mass" in number, which keeps float16 in range;
for the same reason nothing is divided by a normaliser before it is multiplied by what offsets it.

With STICK the kernels read the logits of stick breaking in place of weights, break the stick where
they need it, and write the gradient of the logits.
"""

from typing import Optional, Tuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..common.key_sums import KeyLaunch, make_state
from ..common.numerics import token_major
from ..common.triton import (
    OPTIONS,
    Launch,
    load_rows,
    padded,
    product,
    real_tokens,
    store_rows,
    strides,
)
from .groups import has_far_tokens

TILE = 8
# Keys or queries of a halo that a program holds at once.
HALO_BLOCK = 64
# Of the largest kernel, see :func:`..common.triton.refuses`.
SHARED_KIB = dict(half=(32, 96), float=(96, 176))
STICKS = {None: 0, 'offset': 1, 'plain': 2}


@triton.jit
def _tile_tokens(T: tl.constexpr, height, width):
    """Row, column and token of each place of this program's tile; token N outside the map."""
    place = tl.arange(0, T * T)
    y, x = tl.program_id(1) * T + place // T, tl.program_id(2) * T + place % T
    return y, x, tl.where((y < height) & (x < width), y * width + x, height * width)


@triton.jit
def _halo_tokens(i, T: tl.constexpr, REACH: tl.constexpr, BX: tl.constexpr, BK: tl.constexpr,
                 height, width):  # fmt: skip
    """The same of block i of the halo of this program's tile, BK / BX rows of it at once."""
    place = tl.arange(0, BK)
    y, x = i * (BK // BX) + place // BX, place % BX
    inside = (y < T + 2 * REACH) & (x < T + 2 * REACH)
    y += tl.program_id(1) * T - REACH
    x += tl.program_id(2) * T - REACH
    inside = inside & (y >= 0) & (y < height) & (x >= 0) & (x < width)
    return y, x, tl.where(inside, y * width + x, height * width)


@triton.jit
def _distance(y1, x1, y2, x2):
    """Chebyshev distance, (len 1, len 2)."""
    return tl.maximum(tl.abs(y1[:, None] - y2[None, :]), tl.abs(x1[:, None] - x2[None, :]))


@triton.jit
def _load_weight(base, tokens, r, stride_n, stride_r, N):
    tokens = tokens.to(tl.int64)
    return tl.load(base + tokens * stride_n + r * stride_r, mask=tokens < N, other=0.0).to(
        tl.float32
    )


@triton.jit
def _break_stick(base, tokens, r, stride_n, stride_r, N, REACH: tl.constexpr, STICK: tl.constexpr):
    """Share of what is left of the stick that group r <= REACH takes, and the share it leaves."""
    odds = tl.exp(_load_weight(base, tokens, r, stride_n, stride_r, N))
    if STICK == 1:
        odds = odds / (REACH + 1 - r)
    # Neither is taken from the other: small shares keep their digits, and odds may be infinite.
    return 1 / (1 + 1 / odds), 1 / (1 + odds)


@triton.jit
def _ring_weight(
    base, tokens, r, left, stride_n, stride_r, N, REACH: tl.constexpr, STICK: tl.constexpr
):
    """Weight of group r <= REACH; what is left of the stick before and after, 1 at first."""
    if STICK:
        taken, rest = _break_stick(base, tokens, r, stride_n, stride_r, N, REACH, STICK)
        return left * taken, left * rest
    else:
        return _load_weight(base, tokens, r, stride_n, stride_r, N), left


@triton.jit
def _some_far(flags, tokens, N, HAS_FLAGS: tl.constexpr):
    """1 for tokens that have a real one in the last group, else 0."""
    if HAS_FLAGS:
        return tl.load(flags + tokens, mask=tokens < N, other=0).to(tl.float32)
    else:
        return tl.full(tokens.shape, 1.0, tl.float32)


@triton.jit
def _far_weight(
    base, flags, tokens, stride_n, stride_r, N,
    REACH: tl.constexpr, STICK: tl.constexpr, HAS_FLAGS: tl.constexpr,
):  # fmt: skip
    """Weight of the last group; 0 where that is empty: sums of the whole map less what is near
    would leave rounding errors."""
    if STICK:
        weight = tl.full(tokens.shape, 1.0, tl.float32)
        for r in tl.static_range(REACH + 1):
            _, weight = _ring_weight(base, tokens, r, weight, stride_n, stride_r, N, REACH, STICK)
    else:
        weight = _load_weight(base, tokens, REACH + 1, stride_n, stride_r, N)
    return weight * _some_far(flags, tokens, N, HAS_FLAGS)


@triton.jit
def _stick_backward(
    d_weight, groups, base, tokens, stride_n, stride_r, N,
    REACH: tl.constexpr, STICK: tl.constexpr,
):  # fmt: skip
    """Gradient of the logits, (tokens, groups), from that of the weights.

    With s_r the share taken and left_r what is left before, it is ``left_r s_r (1 - s_r)`` times
    how much ``d_weight_r`` exceeds its mean over what remains of the stick.
    """
    d_logit = tl.zeros(d_weight.shape, tl.float32)
    mean = tl.sum(tl.where(groups[None, :] == REACH + 1, d_weight, 0.0), 1)
    for i in tl.static_range(REACH + 1):
        taken, rest = _break_stick(base, tokens, REACH - i, stride_n, stride_r, N, REACH, STICK)
        here = groups[None, :] == REACH - i
        excess = tl.sum(tl.where(here, d_weight, 0.0), 1) - mean
        # Groups further out come from what this one leaves.
        d_logit = tl.where(here, (taken * rest * excess)[:, None], d_logit * rest[:, None])
        mean += taken * excess
    return d_logit


@triton.jit
def _forward_kernel(
    Q, K, V, WEIGHT, FAR, MASK, S, Z, MASS, OUT, NORM,
    sqb, sqh, sqn, sqd, skb, skh, skn, skd, svb, svh, svn, svd, swb, swh, swn, swr,
    sxb, sxh, sxn, sxd, H, N, D, height, width, eps,
    T: tl.constexpr, REACH: tl.constexpr, BX: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr,
    HAS_MASK: tl.constexpr, STICK: tl.constexpr, HAS_FLAGS: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0).to(tl.int64)
    b, h = head // H, head % H
    kind = Q.dtype.element_ty
    cols = tl.arange(0, BD)
    qy, qx, rows = _tile_tokens(T, height, width)
    q = load_rows(Q + b * sqb + h * sqh, rows, cols, sqn, sqd, N, D)
    weight_base = WEIGHT + b * swb + h * swh
    far = _far_weight(weight_base, FAR + b * N, rows, swn, swr, N, REACH, STICK, HAS_FLAGS)
    # Scores of scaled queries fit float16; total and norm are linear in them.
    scale = tl.maximum(tl.max(q, 1), 1.0)
    q = q / scale[:, None]
    total, norm = tl.zeros((T * T, BD), tl.float32), tl.zeros((T * T,), tl.float32)
    for i in range(0, tl.cdiv(T + 2 * REACH, BK // BX)):
        ky, kx, keys = _halo_tokens(i, T, REACH, BX, BK, height, width)
        real = real_tokens(MASK + b * N, keys, N, HAS_MASK)
        k = load_rows(K + b * skb + h * skh, keys, cols, skn, skd, N, D)
        v = load_rows(V + b * svb + h * svh, keys, cols, svn, svd, N, D)
        distance = _distance(qy, qx, ky, kx)
        local = tl.zeros((T * T, BK), tl.float32)
        left = tl.full((T * T,), 1.0, tl.float32)
        for r in tl.static_range(REACH + 1):
            near, left = _ring_weight(weight_base, rows, r, left, swn, swr, N, REACH, STICK)
            local = tl.where((distance == r) & real[None, :], (near - far)[:, None], local)
        scores = product(q, tl.trans(k), kind) * local
        total += product(scores, v, kind)
        norm += tl.sum(scores, 1)
    state = tl.load(S + head * BD * BD + cols[:, None] * BD + cols[None, :])
    z = tl.load(Z + head * BD + cols)
    mass = tl.load(MASS + head)
    total = total / mass + product(q, state, kind) * far[:, None]
    norm = (norm + eps / scale) / mass + tl.sum(q * z[None, :], 1) * far
    store_rows(OUT + b * sxb + h * sxh, total / norm[:, None], rows, cols, sxn, sxd, N, D)
    tl.store(NORM + head * N + rows, norm * scale, mask=rows < N)


@triton.jit
def _query_backward_kernel(
    Q, K, V, WEIGHT, FAR, MASK, S, Z, MASS, NORM, DOUT, DQ, DWEIGHT, DNORM,
    sqb, sqh, sqn, sqd, skb, skh, skn, skd, svb, svh, svn, svd, swb, swh, swn, swr,
    sxb, sxh, sxn, sxd, sgb, sgh, sgn, sgd, H, N, D, height, width, eps,
    T: tl.constexpr, REACH: tl.constexpr, BX: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr,
    BR: tl.constexpr, HAS_MASK: tl.constexpr, STICK: tl.constexpr, HAS_FLAGS: tl.constexpr,
):  # fmt: skip
    """Gradients of the queries, of the weights or logits, and of each normaliser times itself.

    What the normaliser's gradient multiplies is summed apart: taken from the rounded output, that
    gradient would cost those of the weights, which are small differences, most of their digits.
    So would what all values share: it is taken off, and added to the stored gradient alone.
    """
    head = tl.program_id(0).to(tl.int64)
    b, h = head // H, head % H
    kind = Q.dtype.element_ty
    cols, groups = tl.arange(0, BD), tl.arange(0, BR)
    qy, qx, rows = _tile_tokens(T, height, width)
    q = load_rows(Q + b * sqb + h * sqh, rows, cols, sqn, sqd, N, D)
    grad = load_rows(DOUT + b * sgb + h * sgh, rows, cols, sgn, sgd, N, D)
    norm = tl.load(NORM + head * N + rows, mask=rows < N, other=1.0)
    mass = tl.load(MASS + head)
    state = tl.load(S + head * BD * BD + cols[:, None] * BD + cols[None, :])
    z = tl.load(Z + head * BD + cols)
    shared = tl.sum(state * z[:, None], 0) / tl.maximum(tl.sum(z * z), 1e-30)
    state -= z[:, None] * shared[None, :]
    d_shared = tl.sum(grad * shared[None, :], 1)
    weight_base = WEIGHT + b * swb + h * swh
    far = _far_weight(weight_base, FAR + b * N, rows, swn, swr, N, REACH, STICK, HAS_FLAGS)
    dq, dq_norm = tl.zeros((T * T, BD), tl.float32), tl.zeros((T * T, BD), tl.float32)
    d_weight, d_weight_norm = tl.zeros((T * T, BR), tl.float32), tl.zeros((T * T, BR), tl.float32)
    agreement = tl.zeros((T * T,), tl.float32)  # of the sum over values with its gradient
    for i in range(0, tl.cdiv(T + 2 * REACH, BK // BX)):
        ky, kx, keys = _halo_tokens(i, T, REACH, BX, BK, height, width)
        real = real_tokens(MASK + b * N, keys, N, HAS_MASK)
        k = load_rows(K + b * skb + h * skh, keys, cols, skn, skd, N, D)
        v = load_rows(V + b * svb + h * svh, keys, cols, svn, svd, N, D) - shared[None, :]
        distance = _distance(qy, qx, ky, kx)
        kernel = product(q, tl.trans(k), kind)
        d_scores = product(grad, tl.trans(v), kind)
        local = tl.zeros((T * T, BK), tl.float32)
        left = tl.full((T * T,), 1.0, tl.float32)
        for r in tl.static_range(REACH + 1):
            ring = (distance == r) & real[None, :]
            near, left = _ring_weight(weight_base, rows, r, left, swn, swr, N, REACH, STICK)
            local = tl.where(ring, (near - far)[:, None], local)
            of_ring = tl.where(ring, kernel, 0.0)
            here = groups[None, :] == r
            d_weight += tl.where(here, tl.sum(of_ring * d_scores, 1)[:, None], 0.0)
            d_weight_norm += tl.where(here, tl.sum(of_ring, 1)[:, None], 0.0)
        agreement += tl.sum(kernel * local * d_scores, 1)
        dq += product(d_scores * local, k, kind)
        dq_norm += product(local, k, kind)
    d_far = product(grad, tl.trans(state), kind)
    agreement = agreement / mass + far * tl.sum(q * d_far, 1)
    d_norm = (eps / mass * d_shared - agreement) / norm
    tl.store(DNORM + head * N + rows, d_norm - d_shared, mask=rows < N)
    d_far = (d_far + d_norm[:, None] * z[None, :]) / norm[:, None]
    near = (1 / norm / mass)[:, None]
    dq = (dq + d_norm[:, None] * dq_norm) * near + far[:, None] * d_far
    d_weight = (d_weight + d_norm[:, None] * d_weight_norm) * near
    of_last = tl.sum(q * d_far, 1) - tl.sum(d_weight, 1)
    of_last *= _some_far(FAR + b * N, rows, N, HAS_FLAGS)
    d_weight += tl.where(groups[None, :] == REACH + 1, of_last[:, None], 0.0)
    store_rows(DQ + b * sxb + h * sxh, dq, rows, cols, sxn, sxd, N, D)
    size: tl.constexpr = REACH + (1 if STICK else 2)
    if STICK:
        d_weight = _stick_backward(d_weight, groups, weight_base, rows, swn, swr, N, REACH, STICK)
    store_rows(DWEIGHT + head * N * size, d_weight, rows, groups, size, 1, N, size)


@triton.jit
def _far_backward_kernel(
    Q, WEIGHT, FAR, NORM, DNORM, DOUT, DS, DZ,
    sqb, sqh, sqn, sqd, swb, swh, swn, swr, sgb, sgh, sgn, sgd, H, N, D, CHUNK,
    REACH: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, STICK: tl.constexpr,
    HAS_FLAGS: tl.constexpr,
):  # fmt: skip
    """Gradients of the sums of linear attention, over a chunk of queries."""
    head, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    b, h = head // H, head % H
    kind = Q.dtype.element_ty
    cols = tl.arange(0, BD)
    d_state, d_z = tl.zeros((BD, BD), tl.float32), tl.zeros((BD,), tl.float32)
    for start in range(split * CHUNK, tl.minimum((split + 1) * CHUNK, N), BN):
        rows = start + tl.arange(0, BN)
        q = load_rows(Q + b * sqb + h * sqh, rows, cols, sqn, sqd, N, D)
        far = _far_weight(
            WEIGHT + b * swb + h * swh, FAR + b * N, rows, swn, swr, N, REACH, STICK, HAS_FLAGS
        )
        norm = tl.load(NORM + head * N + rows, mask=rows < N, other=1.0)
        q *= (far / norm)[:, None]
        grad = load_rows(DOUT + b * sgb + h * sgh, rows, cols, sgn, sgd, N, D)
        d_norm = tl.load(DNORM + head * N + rows, mask=rows < N, other=0.0)
        d_state += product(tl.trans(q), grad, kind)
        d_z += tl.sum(q * d_norm[:, None], 0)
    at = head * tl.num_programs(1) + split
    tl.store(DS + at * BD * BD + cols[:, None] * BD + cols[None, :], d_state)
    tl.store(DZ + at * BD + cols, d_z)


@triton.jit
def _key_backward_kernel(
    Q, K, V, WEIGHT, FAR, MASK, NORM, DNORM, DOUT, DS, DZ, MASS, DK, DV,
    sqb, sqh, sqn, sqd, skb, skh, skn, skd, svb, svh, svn, svd, swb, swh, swn, swr,
    sxb, sxh, sxn, sxd, sgb, sgh, sgn, sgd, H, N, D, height, width,
    T: tl.constexpr, REACH: tl.constexpr, BX: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr,
    HAS_MASK: tl.constexpr, STICK: tl.constexpr, HAS_FLAGS: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0).to(tl.int64)
    b, h = head // H, head % H
    kind = Q.dtype.element_ty
    cols = tl.arange(0, BD)
    ky, kx, rows = _tile_tokens(T, height, width)
    real = real_tokens(MASK + b * N, rows, N, HAS_MASK)
    k = load_rows(K + b * skb + h * skh, rows, cols, skn, skd, N, D)
    v = load_rows(V + b * svb + h * svh, rows, cols, svn, svd, N, D)
    # DS and DZ are divided by the root of the mass, which keeps them in range whatever their signs.
    d_state = tl.load(DS + head * BD * BD + cols[:, None] * BD + cols[None, :])
    root = tl.sqrt(tl.load(MASS + head))
    dk = product(v, tl.trans(d_state), kind)
    dk += tl.load(DZ + head * BD + cols)[None, :]
    dv = product(k, d_state, kind)
    weight_base = WEIGHT + b * swb + h * swh
    for i in range(0, tl.cdiv(T + 2 * REACH, BK // BX)):
        qy, qx, tokens = _halo_tokens(i, T, REACH, BX, BK, height, width)
        q = load_rows(Q + b * sqb + h * sqh, tokens, cols, sqn, sqd, N, D)
        grad = load_rows(DOUT + b * sgb + h * sgh, tokens, cols, sgn, sgd, N, D)
        q = q / tl.load(NORM + head * N + tokens, mask=tokens < N, other=1.0)[:, None]
        d_norm = tl.load(DNORM + head * N + tokens, mask=tokens < N, other=0.0)
        distance = _distance(ky, kx, qy, qx)
        far = _far_weight(weight_base, FAR + b * N, tokens, swn, swr, N, REACH, STICK, HAS_FLAGS)
        local = tl.zeros((T * T, BK), tl.float32)
        left = tl.full((BK,), 1.0, tl.float32)
        for r in tl.static_range(REACH + 1):
            near, left = _ring_weight(weight_base, tokens, r, left, swn, swr, N, REACH, STICK)
            local = tl.where(distance == r, (near - far)[None, :], local)
        scores = product(k, tl.trans(q), kind) * local / root
        dv += product(scores, grad, kind)
        d_scores = (product(v, tl.trans(grad), kind) + d_norm[None, :]) * local
        dk += product(d_scores, q, kind) / root
    dk, dv = dk / root, dv / root
    dk, dv = tl.where(real[:, None], dk, 0.0), tl.where(real[:, None], dv, 0.0)
    store_rows(DK + b * sxb + h * sxh, dk, rows, cols, sxn, sxd, N, D)
    store_rows(DV + b * sxb + h * sxh, dv, rows, cols, sxn, sxd, N, D)


class RippleLaunch(Launch):
    """Sizes and options that the kernels over tiles share."""

    def __init__(
        self,
        q: Tensor,
        weights: Tensor,
        hw_shape: Tuple[int, int],
        mask: Optional[Tensor],
        stick: Optional[str],
    ) -> None:
        super().__init__(q, mask, widest=padded(q.shape[-1]))
        height, width = hw_shape
        self.tiles = (self.grid[0], triton.cdiv(height, TILE), triton.cdiv(width, TILE))
        self.sizes = (self.heads, self.num_tokens, self.dim, height, width)
        self.num_groups = weights.shape[-1] + (stick is not None)
        reach = self.num_groups - 2  # the halo: the last distance with a weight of its own
        columns = triton.next_power_of_2(TILE + 2 * reach)
        far = has_far_tokens(hw_shape, reach + 1, mask, q.device)
        # Any tensor stands for no flags.
        self.far = q if far is None else far.expand(self.batch, -1).contiguous().view(torch.uint8)
        self.weights = dict(REACH=reach, STICK=STICKS[stick], HAS_FLAGS=far is not None)
        self.blocks = dict(
            T=TILE, BX=columns, BK=max(HALO_BLOCK, columns), BD=self.bd, **self.weights, **OPTIONS
        )


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    weights: Tensor,
    hw_shape: Tuple[int, int],
    mask: Optional[Tensor],
    eps: float,
    stick: Optional[str],
) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Output, normalisers (B, heads, N), and sums S, z and number of the keys of each head."""
    state = make_state(k, v, None, eps, KeyLaunch(q, mask, 0, scored=False))
    mass = state.lse.exp()
    launch = RippleLaunch(q, weights, hw_shape, mask, stick)
    out = token_major(q)
    norm = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    _forward_kernel[launch.tiles](
        q, k, v, weights, launch.far, launch.mask, state.s, state.z, mass, out, norm,
        *strides(q), *strides(k), *strides(v), *strides(weights), *strides(out), *launch.sizes,
        eps, **launch.blocks, **launch.has_mask,
    )  # fmt: skip
    return out, norm, state.s, state.z, mass


def backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    weights: Tensor,
    hw_shape: Tuple[int, int],
    mask: Optional[Tensor],
    norm: Tensor,
    s: Tensor,
    z: Tensor,
    mass: Tensor,
    eps: float,
    stick: Optional[str],
) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v and weights, which are logits with ``stick``."""
    launch = RippleLaunch(q, weights, hw_shape, mask, stick)
    bd = launch.bd
    dq, dk, dv = (token_major(x) for x in (q, k, v))
    d_weights = torch.empty(weights.shape, dtype=weights.dtype, device=q.device)
    d_norm = torch.empty_like(norm)
    _query_backward_kernel[launch.tiles](
        q, k, v, weights, launch.far, launch.mask, s, z, mass, norm, grad, dq, d_weights, d_norm,
        *strides(q), *strides(k), *strides(v), *strides(weights), *strides(dq), *strides(grad),
        *launch.sizes, eps, BR=triton.next_power_of_2(launch.num_groups),
        **launch.blocks, **launch.has_mask,
    )  # fmt: skip
    ds, dz = launch.per_chunk(bd, bd), launch.per_chunk(bd)
    _far_backward_kernel[launch.grid](
        q, weights, launch.far, norm, d_norm, grad, ds, dz,
        *strides(q), *strides(weights), *strides(grad),
        launch.heads, launch.num_tokens, launch.dim, launch.chunk,
        BN=launch.bn, BD=bd, **launch.weights, **OPTIONS,
    )  # fmt: skip
    root = mass.sqrt()[..., None]
    ds, dz = ds.sum(2) / root[..., None], dz.sum(2) / root
    _key_backward_kernel[launch.tiles](
        q, k, v, weights, launch.far, launch.mask, norm, d_norm, grad, ds, dz, mass, dk, dv,
        *strides(q), *strides(k), *strides(v), *strides(weights), *strides(dk), *strides(grad),
        *launch.sizes, **launch.blocks, **launch.has_mask,
    )  # fmt: skip
    return dq, dk, dv, d_weights
