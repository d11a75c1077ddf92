"""Kernels of linear attention, RALA and MALA.

With the sums S and z of :mod:`..common.kv_state` the output is
``rot(phi(q_i)) S / (phi(q_i) . z + eps)``; MALA's (``ROWS == 2``) is
``gain_i rot(phi(q_i)) S - s phi(q_i) . z mean(v)``. Normalised sums keep float16 in
range. Gradients of sums are divided by the square root of the number of tokens, which keeps them in
range for any signs. Each program processes a chunk of tokens of one head. Kernel names are those of
:mod:`..common.launch_table`; RALA and MALA have their own entries because they need more registers.
"""

from typing import Tuple

import triton
import triton.language as tl
from torch import Tensor

from ..common.kv_state import KernelKVState, KeyLaunch
from ..common.numerics import token_major
from ..common.reduction import Masses, add_chunks, mean_of_chunks
from ..common.triton_helpers import (
    add_product,
    feature,
    load_angles,
    load_rows,
    packed_image,
    product,
    real_tokens,
    rotate,
    slope,
    store_rows,
    strides,
)

KERNELS = ('kv_state', 'query_output', 'query_backward', 'key_backward')
RALA_KERNELS = (
    'query_mean', 'rala_kv_state', 'rala_query_output', 'rala_query_sums', 'rala_key_backward',
    'rala_query_backward',
)  # fmt: skip

MALA_KERNELS = tuple(f'mala_{name}' for name in KERNELS)


@triton.jit
def _query_mean_kernel(
    Q, MASK, IMAGES, OUT, COUNT, sqb, sqh, sqn, sqd, H, N, width, CHUNK,
    D: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, FEATURE: tl.constexpr,
    HAS_MASK: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """Sum phi(q) over a chunk, (BD,), and count its real tokens."""
    head, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    b, h = head // H, head % H
    if PACKED:
        b, first, N, _, _ = packed_image(IMAGES, b, Q)
        Q += first * sqn
    cols = tl.arange(0, BD)
    total, count = tl.zeros((BD,), tl.float32), tl.full((), 0.0, tl.float32)
    for start in range(split * CHUNK, tl.minimum((split + 1) * CHUNK, N), BN):
        rows = start + tl.arange(0, BN)
        real = real_tokens(MASK + b * N, rows, N, HAS_MASK)
        x = load_rows(Q + b * sqb + h * sqh, rows, cols, sqn, sqd, N, D)
        # Padded channels have phi(0).
        x = tl.where(real[:, None] & (cols[None, :] < D), feature(x, FEATURE), 0.0)
        total += tl.sum(x, 0)
        count += tl.sum(tl.where(real, 1.0, 0.0), 0)
    at = head * tl.num_programs(1) + split
    tl.store(OUT + at * BD + cols, total)
    tl.store(COUNT + at, count)


@triton.jit
def _eps(eps, TOTAL, head, OF_MEAN: tl.constexpr):
    """Scale eps to the normalised sums, unless it belongs to a mean, as always in RALA."""
    if not OF_MEAN:
        eps = eps / tl.load(TOTAL + head)
    return eps


@triton.jit
def _query_output_kernel(
    Q, IMAGES, ANGLES, SUMS, TOTAL, OUT,
    sqb, sqh, sqn, sqd, sob, soh, son, sod, H, N, width, CHUNK, eps, scale,
    D: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, FEATURE: tl.constexpr,
    OF_MEAN: tl.constexpr, ROTARY: tl.constexpr, ROWS: tl.constexpr,
    PACKED: tl.constexpr,
):  # fmt: skip
    head, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    b, h = head // H, head % H
    if PACKED:
        b, first, N, width, ANGLES = packed_image(IMAGES, b, ANGLES)
        Q += first * sqn
        OUT += first * son
    cols, pairs = tl.arange(0, BD), tl.arange(0, BD // 2)
    kind = Q.dtype.element_ty
    SUMS += head * (BD + ROWS) * BD
    state = tl.load(SUMS + cols[:, None] * BD + cols[None, :])
    z = tl.load(SUMS + BD * BD + cols)
    eps = _eps(eps, TOTAL, head, OF_MEAN)
    if ROWS == 2:
        values = tl.load(SUMS + (BD + 1) * BD + cols)
    for start in range(split * CHUNK, tl.minimum((split + 1) * CHUNK, N), BN):
        rows = start + tl.arange(0, BN)
        q = feature(load_rows(Q + b * sqb + h * sqh, rows, cols, sqn, sqd, N, D), FEATURE)
        if D < BD:
            q = tl.where(cols[None, :] < D, q, 0.0)
        positive = tl.sum(q * z[None, :], 1)
        if ROTARY:
            cos, sin = load_angles(ANGLES, rows, pairs, N, width, ROTARY)
            q = rotate(q, cos, sin, BN, BD)
        out = product(q, state, kind)
        if ROWS == 2:
            size = scale * positive
            out = out * (scale + scale / (size + eps))[:, None] - size[:, None] * values[None, :]
        else:
            out = out / (positive + eps)[:, None]
        store_rows(OUT + b * sob + h * soh, out, rows, cols, son, sod, N, D)


@triton.jit
def _query_backward_kernel(
    Q, DOUT, MASK, IMAGES, ANGLES, SUMS, TOTAL, DMEAN, DQ, DSUMS,
    sqb, sqh, sqn, sqd, sgb, sgh, sgn, sgd, sxb, sxh, sxn, sxd, H, N, width, CHUNK,
    eps, scale, root,
    D: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, FEATURE: tl.constexpr,
    HAS_MASK: tl.constexpr, ROTARY: tl.constexpr, SCORED: tl.constexpr, OF_MEAN: tl.constexpr,
    SUM: tl.constexpr, WRITE: tl.constexpr, ROWS: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """Compute gradients of the state over a chunk (SUM), and of the queries (WRITE)."""
    head, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    b, h = head // H, head % H
    if PACKED:
        b, first, N, width, ANGLES = packed_image(IMAGES, b, ANGLES)
        Q += first * sqn
        DOUT += first * sgn
        DQ += first * sxn
    cols, pairs = tl.arange(0, BD), tl.arange(0, BD // 2)
    kind = Q.dtype.element_ty
    SUMS += head * (BD + ROWS) * BD
    state = tl.load(SUMS + cols[:, None] * BD + cols[None, :])
    z = tl.load(SUMS + BD * BD + cols)
    eps = _eps(eps, TOTAL, head, OF_MEAN)
    shared = tl.zeros((BD,), tl.float32)
    if ROWS == 2:
        values, d_values = tl.load(SUMS + (BD + 1) * BD + cols), tl.zeros((BD,), tl.float32)
    elif not ROTARY:
        # Gradients of queries depend on differences of values: subtract the common part, which
        # would cost most digits.
        shared += tl.sum(state * z[:, None], 0) / tl.maximum(tl.sum(z * z), 1e-30)
        state -= z[:, None] * shared[None, :]
    if SUM:
        d_state, d_z = tl.zeros((BD, BD), tl.float32), tl.zeros((BD,), tl.float32)
    if WRITE and SCORED:
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
            cos, sin = load_angles(ANGLES, rows, pairs, N, width, ROTARY)
            turned = tl.where(rows[:, None] < N, rotate(q, cos, sin, BN, BD), 0.0)  # for sm_100
        out = product(turned, state, kind) + positive[:, None] * shared[None, :]
        if ROWS == 2:
            size = scale * positive
            over = scale / (size + eps)
            gain = scale + over
            d_norm = -tl.sum(grad * out, 1) * over * over
            d_norm -= scale * tl.sum(grad * values[None, :], 1)
            d_values -= tl.sum(size[:, None] * grad, 0)
        else:
            # The norm may be as small as eps: rounding errors of a product are divided by it only
            # where the product is as small.
            gain = 1 / norm
            d_norm = -tl.sum(grad * out, 1) * gain
        if SUM:
            d_state = add_product(d_state, tl.trans(turned * gain[:, None]), grad, kind)
            d_z += tl.sum(q * (d_norm if ROWS == 2 else d_norm * gain)[:, None], 0)
        if WRITE:
            dq = product(grad, tl.trans(state), kind)
            if ROTARY:
                dq = rotate(dq, cos, -sin, BN, BD)
            if ROWS == 2:
                dq = dq * gain[:, None] + d_norm[:, None] * z[None, :]
            else:
                dq += (d_norm + tl.sum(grad * shared[None, :], 1))[:, None] * z[None, :]
                dq = dq * gain[:, None]
            if SCORED:
                real = real_tokens(MASK + b * N, rows, N, HAS_MASK)
                dq += tl.where(real[:, None], d_mean[None, :], 0.0)
            dq *= slope(raw, FEATURE)
            store_rows(DQ + b * sxb + h * sxh, dq, rows, cols, sxn, sxd, N, D)
    if SUM:
        at = head * tl.num_programs(1) + split
        DSUMS += at * (BD + ROWS) * BD
        tl.store(DSUMS + cols[:, None] * BD + cols[None, :], d_state / root)
        tl.store(DSUMS + BD * BD + cols, d_z / root)
        if ROWS == 2:
            tl.store(DSUMS + (BD + 1) * BD + cols, d_values / root)


@triton.jit
def _key_backward_kernel(
    K, V, MASK, IMAGES, ANGLES, MEAN, COUNT, TOTAL, SUMS, DSUMS, DK, DV, DMEAN,
    skb, skh, skn, skd, svb, svh, svn, svd, sxb, sxh, sxn, sxd, H, N, width, CHUNK, scale, root,
    D: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, FEATURE: tl.constexpr,
    HAS_MASK: tl.constexpr, SCORED: tl.constexpr, ROTARY: tl.constexpr, ROWS: tl.constexpr,
    PACKED: tl.constexpr,
):  # fmt: skip
    """Compute gradients of keys and values, and of the mean query over a chunk."""
    head, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    b, h = head // H, head % H
    if PACKED:
        b, first, N, width, ANGLES = packed_image(IMAGES, b, ANGLES)
        K += first * skn
        V += first * svn
        DK += first * sxn
        DV += first * sxn
    cols, pairs = tl.arange(0, BD), tl.arange(0, BD // 2)
    kind = K.dtype.element_ty
    SUMS += head * (BD + ROWS) * BD
    DSUMS += head * (BD + ROWS) * BD
    square = cols[:, None] * BD + cols[None, :]
    d_state = tl.load(DSUMS + square)
    d_z = tl.load(DSUMS + BD * BD + cols)
    total = tl.load(TOTAL + head)
    if ROWS == 2:
        d_values = tl.load(DSUMS + (BD + 1) * BD + cols)
    if SCORED:
        mean = tl.load(MEAN + head * BD + cols) * scale
        # sum_j w_j dw_j of the softmax gradient, in closed form.
        delta = tl.sum(tl.sum(d_state * tl.load(SUMS + square), 1), 0)
        delta += tl.sum(d_z * tl.load(SUMS + BD * BD + cols), 0)
        d_mean = tl.zeros((BD,), tl.float32)
    for start in range(split * CHUNK, tl.minimum((split + 1) * CHUNK, N), BN):
        rows = start + tl.arange(0, BN)
        real = real_tokens(MASK + b * N, rows, N, HAS_MASK)
        raw = load_rows(K + b * skb + h * skh, rows, cols, skn, skd, N, D)
        v = load_rows(V + b * svb + h * svh, rows, cols, svn, svd, N, D)
        k = tl.where(real[:, None] & (cols[None, :] < D), feature(raw, FEATURE), 0.0)
        if SCORED:
            weight = tl.exp(tl.minimum(tl.sum(k * mean[None, :], 1) - total, 0.0)) * root
        else:
            weight = tl.zeros((BN,), tl.float32) + root / total
        weight = tl.where(real, weight, 0.0)
        turned = k
        if ROTARY:
            cos, sin = load_angles(ANGLES, rows, pairs, N, width, ROTARY)
            turned = rotate(k, cos, sin, BN, BD)
        dv = product(turned, d_state, kind)
        if ROWS == 2:
            dv += d_values[None, :]
        dv = tl.where(real[:, None], dv * weight[:, None], 0.0)
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
        d_mean = d_mean / tl.load(COUNT + head)
        tl.store(DMEAN + (head * tl.num_programs(1) + split) * BD + cols, d_mean)


def mean_query(q: Tensor, launch: KeyLaunch) -> Tuple[Tensor, Tensor]:
    """Return the mean of phi(q) over real tokens (B, heads, BD), and their number (B, heads)."""
    sums, count = launch.parts('query_mean', 1, launch.bd), launch.parts('query_mean', 1)
    launch.run(
        'query_mean', _query_mean_kernel, q, launch.mask, launch.images, sums, count,
        *strides(q), *launch.sizes, **launch.blocks, **launch.has_mask, **launch.packed,
    )  # fmt: skip
    mean, count = mean_of_chunks(sums, Masses(count))
    return mean.squeeze(2), count.squeeze(2)


def query_output(
    q: Tensor, state: KernelKVState, eps: float, mean_normaliser: bool, launch: KeyLaunch
) -> Tensor:
    """Return the output, (B, heads, N, d)."""
    out = token_major(q)
    launch.run(
        launch.name('query_output'), _query_output_kernel,
        q, launch.images, launch.axes, state.sums, state.total, out,
        *strides(q), *strides(out), *launch.sizes,
        eps=eps, scale=launch.scale, OF_MEAN=mean_normaliser,
        **launch.blocks, **launch.rotary, **launch.state_rows, **launch.packed,
    )  # fmt: skip
    return out


def backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: KernelKVState,
    eps: float,
    mean_normaliser: bool,
    query_launch: KeyLaunch,
    launch: KeyLaunch,
) -> Tuple[Tensor, Tensor, Tensor]:
    """Return gradients of q, k and v; ``launch`` is that of the keys."""
    scored, bd = launch.scored, launch.bd
    dq, dk, dv = (token_major(x) for x in (q, k, v))

    def queries(name: str, d_mean: Tensor, d_sums: Tensor, **flags: bool) -> None:
        query_launch.run(
            name, _query_backward_kernel,
            q, grad, query_launch.mask, query_launch.images, query_launch.axes,
            state.sums, state.total, d_mean, dq, d_sums,
            *strides(q), *strides(grad), *strides(dq), *query_launch.sizes,
            eps=eps, scale=launch.scale, root=launch.root, SCORED=scored, OF_MEAN=mean_normaliser,
            **launch.blocks, **launch.rotary, **launch.state_rows, **launch.packed,
            **query_launch.has_mask, **flags,
        )  # fmt: skip

    rows = bd + launch.rows
    name = 'rala_query_sums' if scored else launch.name('query_backward')
    parts = query_launch.parts(name, 1, rows, bd)
    queries(name, q, parts, SUM=True, WRITE=not scored)
    d_sums = add_chunks(parts, launch.empty(rows, bd))
    name = launch.name('key_backward')
    parts = launch.parts(name, 1, 1, bd) if scored else d_sums
    launch.run(
        name, _key_backward_kernel,
        k, v, launch.mask, launch.images, launch.axes,
        *((state.mean, state.tokens) if scored else (k, k)),
        state.total, state.sums, d_sums, dk, dv, parts,
        *strides(k), *strides(v), *strides(dk), *launch.sizes,
        scale=launch.scale, root=launch.root, SCORED=scored,
        **launch.blocks, **launch.has_mask, **launch.rotary, **launch.state_rows, **launch.packed,
    )  # fmt: skip
    if scored:
        d_mean = add_chunks(parts, launch.empty(1, bd))
        queries('rala_query_backward', d_mean, d_sums, SUM=False, WRITE=True)
    return dq, dk, dv
