"""Linear attention and RALA: one family of kernels.

With the sums S and z of :mod:`..common.key_sums` the output is
``rot(phi(q_i)) S / (phi(q_i) . z + eps)``. Normalised sums keep float16 in range; gradients of
sums are stored over the root of the number of tokens, which keeps them there whatever their signs.
Every kernel walks over a chunk of tokens of one head.
"""

from typing import Tuple

import triton
import triton.language as tl
from torch import Tensor

from ..common.key_sums import KeyLaunch, State
from ..common.numerics import token_major
from ..common.triton import (
    feature,
    load_angles,
    load_rows,
    product,
    real_tokens,
    rotate,
    slope,
    store_rows,
    strides,
)

# Of the largest kernel, see :func:`..common.triton.refuses`.
SHARED_KIB = dict(half=(48, 96), float=(64, 112))


@triton.jit
def _mean_kernel(
    Q, MASK, OUT, sqb, sqh, sqn, sqd, H, N, D, width, CHUNK,
    BN: tl.constexpr, BD: tl.constexpr, FEATURE: tl.constexpr, HAS_MASK: tl.constexpr,
):  # fmt: skip
    """Sum over a chunk of phi(q), (BD,)."""
    head, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    b, h = head // H, head % H
    cols = tl.arange(0, BD)
    total = tl.zeros((BD,), tl.float32)
    for start in range(split * CHUNK, tl.minimum((split + 1) * CHUNK, N), BN):
        rows = start + tl.arange(0, BN)
        real = real_tokens(MASK + b * N, rows, N, HAS_MASK)
        x = load_rows(Q + b * sqb + h * sqh, rows, cols, sqn, sqd, N, D)
        total += tl.sum(tl.where(real[:, None], feature(x, FEATURE), 0.0), 0)
    tl.store(OUT + (head * tl.num_programs(1) + split) * BD + cols, total)


@triton.jit
def _readout_kernel(
    Q, ANGLES, S, Z, EPS, OUT,
    sqb, sqh, sqn, sqd, sob, soh, son, sod, H, N, D, width, CHUNK,
    BN: tl.constexpr, BD: tl.constexpr, FEATURE: tl.constexpr, ROTARY: tl.constexpr,
):  # fmt: skip
    head, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    b, h = head // H, head % H
    cols, pairs = tl.arange(0, BD), tl.arange(0, BD // 2)
    kind = Q.dtype.element_ty
    state = tl.load(S + head * BD * BD + cols[:, None] * BD + cols[None, :])
    z = tl.load(Z + head * BD + cols)
    eps = tl.load(EPS + head)
    for start in range(split * CHUNK, tl.minimum((split + 1) * CHUNK, N), BN):
        rows = start + tl.arange(0, BN)
        q = feature(load_rows(Q + b * sqb + h * sqh, rows, cols, sqn, sqd, N, D), FEATURE)
        q = tl.where(cols[None, :] < D, q, 0.0)
        norm = tl.sum(q * z[None, :], 1) + eps
        if ROTARY:
            cos, sin = load_angles(ANGLES, rows, pairs, N, D, width)
            q = rotate(q, cos, sin, BN, BD)
        out = product(q, state, kind) / norm[:, None]
        store_rows(OUT + b * sob + h * soh, out, rows, cols, son, sod, N, D)


@triton.jit
def _query_backward_kernel(
    Q, DOUT, MASK, ANGLES, S, Z, EPS, DMEAN, DQ, DS, DZ,
    sqb, sqh, sqn, sqd, sgb, sgh, sgn, sgd, sxb, sxh, sxn, sxd, H, N, D, width, CHUNK, root,
    BN: tl.constexpr, BD: tl.constexpr, FEATURE: tl.constexpr, HAS_MASK: tl.constexpr,
    ROTARY: tl.constexpr, SUM: tl.constexpr, WRITE: tl.constexpr, HAS_MEAN: tl.constexpr,
):  # fmt: skip
    """SUM: gradients of S and z over a chunk. WRITE: gradient of the queries."""
    head, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    b, h = head // H, head % H
    cols, pairs = tl.arange(0, BD), tl.arange(0, BD // 2)
    kind = Q.dtype.element_ty
    state = tl.load(S + head * BD * BD + cols[:, None] * BD + cols[None, :])
    z = tl.load(Z + head * BD + cols)
    eps = tl.load(EPS + head)
    shared = tl.zeros((BD,), tl.float32)
    if not ROTARY:
        # Gradients of queries are of how values differ: what all share would cost most digits.
        shared += tl.sum(state * z[:, None], 0) / tl.maximum(tl.sum(z * z), 1e-30)
        state -= z[:, None] * shared[None, :]
    d_state, d_z = tl.zeros((BD, BD), tl.float32), tl.zeros((BD,), tl.float32)
    if HAS_MEAN:
        d_mean = tl.load(DMEAN + head * BD + cols)
    for start in range(split * CHUNK, tl.minimum((split + 1) * CHUNK, N), BN):
        rows = start + tl.arange(0, BN)
        raw = load_rows(Q + b * sqb + h * sqh, rows, cols, sqn, sqd, N, D)
        grad = load_rows(DOUT + b * sgb + h * sgh, rows, cols, sgn, sgd, N, D)
        q = tl.where((rows[:, None] < N) & (cols[None, :] < D), feature(raw, FEATURE), 0.0)
        positive = tl.sum(q * z[None, :], 1)
        norm = positive + eps
        turned = q
        if ROTARY:
            cos, sin = load_angles(ANGLES, rows, pairs, N, D, width)
            turned = tl.where(rows[:, None] < N, rotate(q, cos, sin, BN, BD), 0.0)  # for sm_100
        out = product(turned, state, kind) + positive[:, None] * shared[None, :]
        # The norm may be eps: what a product rounds is divided only where it is as small.
        d_norm = -tl.sum(grad * out, 1) / norm
        if SUM:
            d_state += product(tl.trans(turned / norm[:, None]), grad, kind)
            d_z += tl.sum(q * (d_norm / norm)[:, None], 0)
        if WRITE:
            dq = product(grad, tl.trans(state), kind)
            if ROTARY:
                dq = rotate(dq, cos, -sin, BN, BD)
            dq += (d_norm + tl.sum(grad * shared[None, :], 1))[:, None] * z[None, :]
            dq = dq / norm[:, None]
            if HAS_MEAN:
                real = real_tokens(MASK + b * N, rows, N, HAS_MASK)
                dq += tl.where(real[:, None], d_mean[None, :], 0.0)
            dq *= slope(raw, FEATURE)
            store_rows(DQ + b * sxb + h * sxh, dq, rows, cols, sxn, sxd, N, D)
    if SUM:
        at = head * tl.num_programs(1) + split
        tl.store(DS + at * BD * BD + cols[:, None] * BD + cols[None, :], d_state / root)
        tl.store(DZ + at * BD + cols, d_z / root)


@triton.jit
def _key_backward_kernel(
    K, V, MASK, ANGLES, MEAN, LSE, DELTA, DS, DZ, DK, DV, DMEAN,
    skb, skh, skn, skd, svb, svh, svn, svd, sxb, sxh, sxn, sxd, H, N, D, width, CHUNK, scale, root,
    BN: tl.constexpr, BD: tl.constexpr, FEATURE: tl.constexpr, HAS_MASK: tl.constexpr,
    SCORED: tl.constexpr, ROTARY: tl.constexpr,
):  # fmt: skip
    """Gradients of keys and values; over a chunk, that of the mean query."""
    head, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    b, h = head // H, head % H
    cols, pairs = tl.arange(0, BD), tl.arange(0, BD // 2)
    kind = K.dtype.element_ty
    d_state = tl.load(DS + head * BD * BD + cols[:, None] * BD + cols[None, :])
    d_z = tl.load(DZ + head * BD + cols)
    lse = tl.load(LSE + head)
    if SCORED:
        mean = tl.load(MEAN + head * BD + cols) * scale
        delta = tl.load(DELTA + head)
        d_mean = tl.zeros((BD,), tl.float32)
    for start in range(split * CHUNK, tl.minimum((split + 1) * CHUNK, N), BN):
        rows = start + tl.arange(0, BN)
        real = real_tokens(MASK + b * N, rows, N, HAS_MASK)
        raw = load_rows(K + b * skb + h * skh, rows, cols, skn, skd, N, D)
        v = load_rows(V + b * svb + h * svh, rows, cols, svn, svd, N, D)
        k = tl.where(real[:, None] & (cols[None, :] < D), feature(raw, FEATURE), 0.0)
        weight = tl.exp(tl.zeros((BN,), tl.float32) - lse)
        if SCORED:
            weight = tl.exp(tl.minimum(tl.sum(k * mean[None, :], 1) - lse, 0.0))
        weight = tl.where(real, weight * root, 0.0)
        turned = k
        if ROTARY:
            cos, sin = load_angles(ANGLES, rows, pairs, N, D, width)
            turned = rotate(k, cos, sin, BN, BD)
        dv = tl.where(real[:, None], product(turned, d_state, kind) * weight[:, None], 0.0)
        d_turned = product(v, tl.trans(d_state), kind)
        dk = d_turned * weight[:, None]
        if ROTARY:
            dk = rotate(dk, cos, -sin, BN, BD)
        dk += weight[:, None] * d_z[None, :]
        if SCORED:
            d_weight = tl.sum(turned * d_turned, 1) + tl.sum(k * d_z[None, :], 1)
            d_score = weight * (d_weight - delta)
            dk += d_score[:, None] * mean[None, :]
            d_mean += tl.sum(tl.where(real[:, None], d_score[:, None] * k, 0.0), 0) * scale
        dk = tl.where(real[:, None], dk * slope(raw, FEATURE), 0.0)
        store_rows(DK + b * sxb + h * sxh, dk, rows, cols, sxn, sxd, N, D)
        store_rows(DV + b * sxb + h * sxh, dv, rows, cols, sxn, sxd, N, D)
    if SCORED:
        tl.store(DMEAN + (head * tl.num_programs(1) + split) * BD + cols, d_mean)


def mean_query(q: Tensor, launch: KeyLaunch) -> Tensor:
    """Mean of phi(q) over the real tokens, (B, heads, BD)."""
    sums = launch.per_chunk(launch.bd)
    _mean_kernel[launch.grid](
        q, launch.mask, sums, *strides(q), *launch.sizes, **launch.blocks, **launch.has_mask
    )
    mean = sums.sum(2) / launch.count()[..., None]
    # Padded channels have phi(0).
    mean[..., launch.dim :] = 0
    return mean


def read_out(q: Tensor, state: State, launch: KeyLaunch) -> Tensor:
    """(B, heads, N, d)."""
    out = token_major(q)
    _readout_kernel[launch.grid](
        q, launch.axes, state.s, state.z, state.eps, out,
        *strides(q), *strides(out), *launch.sizes, **launch.blocks, **launch.rotary,
    )  # fmt: skip
    return out


def backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, state: State, launch: KeyLaunch
) -> Tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v."""
    bd = launch.bd
    dq, dk, dv = (token_major(x) for x in (q, k, v))
    ds, dz, d_mean = (launch.per_chunk(*shape) for shape in ((bd, bd), (bd,), (bd,)))

    def queries(d_mean: Tensor, **flags: bool) -> None:
        _query_backward_kernel[launch.grid](
            q, grad, launch.mask, launch.axes, state.s, state.z, state.eps,
            d_mean, dq, ds, dz, *strides(q), *strides(grad), *strides(dq), *launch.sizes,
            launch.root, **launch.blocks, **launch.has_mask, **launch.rotary, **flags,
        )  # fmt: skip

    queries(q, SUM=True, WRITE=not launch.scored, HAS_MEAN=False)
    sum_ds, sum_dz = ds.sum(2), dz.sum(2)
    delta = sum_dz  # not read without scores
    if launch.scored:  # what the softmax subtracts, sum_j w_j dw_j, in closed form
        delta = (sum_ds * state.s).sum((2, 3)) + (sum_dz * state.z).sum(2)
    _key_backward_kernel[launch.grid](
        k, v, launch.mask, launch.axes, state.mean if launch.scored else k,
        state.lse, delta, sum_ds, sum_dz, dk, dv, d_mean,
        *strides(k), *strides(v), *strides(dk), *launch.sizes, launch.scale, launch.root,
        SCORED=launch.scored, **launch.blocks, **launch.has_mask, **launch.rotary,
    )  # fmt: skip
    if launch.scored:
        d_mean = d_mean.sum(2) / launch.count()[..., None]
        queries(d_mean, SUM=False, WRITE=True, HAS_MEAN=True)
    return dq, dk, dv
