"""Kernels of ripple attention by tiles; scores and spatial weights stay in registers.

As in the torch implementation the last weight is subtracted everywhere,
``w_g = w_R + (w_g - w_R)``. The first term uses the sums of linear attention. The second ends at
distance R, so a tile of 8 x 8 queries attends to the keys of its halo. The backward pass processes
tiles of queries (gradients of weights, then of queries) and tiles of keys; no two programs write to
the same address. The ring weights of a token are computed once per tile, and each pair of tokens
selects its own.

Normalisers and sums are means over all keys ("mass" is their number), which keeps float16 in range.
For the same reason a product is never divided by a normaliser before its compensating factor.

With STICK the kernels read the logits of stick breaking instead of weights and write the gradient
of the logits.
"""

from typing import Dict, Optional, Tuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..common.kv_state import KeyLaunch, make_kv_state
from ..common.numerics import token_major
from ..common.reduction import add_chunks
from ..common.triton_helpers import (
    Launch,
    add_product,
    load_rows,
    product,
    real_tokens,
    store_rows,
    strides,
)

KERNELS = (
    'kv_state', 'ripple', 'ripple_weight_backward', 'ripple_query_backward',
    'ripple_far_backward', 'ripple_key_backward',
)  # fmt: skip
# Reason why this version of Triton cannot compile the kernels: it lacks tl.gather.
PROBLEM = None if hasattr(tl, 'gather') else f'kernels need Triton 3.3, not {triton.__version__}'
TILE = 8
# Programs that search the real tokens of an image.
BOXES = 64
STICKS = {None: 0, 'offset': 1, 'plain': 2}


@triton.jit
def _tile_tokens(T: tl.constexpr, height, width):
    """Return head and tile of this program, and row, column and token of each place of the tile.

    Token N is outside the map. One grid axis counts the tiles of all heads: others end at 65,535.
    """
    across, down = tl.cdiv(width, T), tl.cdiv(height, T)
    head, tile = tl.program_id(0) // (across * down), tl.program_id(0) % (across * down)
    top, left = tile // across * T, tile % across * T
    place = tl.arange(0, T * T)
    y, x = top + place // T, left + place % T
    tokens = tl.where((y < height) & (x < width), y * width + x, height * width)
    return head.to(tl.int64), top, left, y, x, tokens


@triton.jit
def _halo_tokens(i, top, left, T: tl.constexpr, REACH: tl.constexpr, BX: tl.constexpr,
                 BK: tl.constexpr, height, width):  # fmt: skip
    """Return row, column and token of block i of the halo of a tile, BK / BX rows at once."""
    place = tl.arange(0, BK)
    y, x = i * (BK // BX) + place // BX, place % BX
    inside = (y < T + 2 * REACH) & (x < T + 2 * REACH)
    y += top - REACH
    x += left - REACH
    inside = inside & (y >= 0) & (y < height) & (x >= 0) & (x < width)
    return y, x, tl.where(inside, y * width + x, height * width)


@triton.jit
def _distance(y1, x1, y2, x2):
    """Compute the Chebyshev distance, (len 1, len 2)."""
    return tl.maximum(tl.abs(y1[:, None] - y2[None, :]), tl.abs(x1[:, None] - x2[None, :]))


@triton.jit
def _some_far(box, y, x, height, width, REACH: tl.constexpr, BOXES: tl.constexpr,
              HAS_MASK: tl.constexpr):  # fmt: skip
    """Return 1 for tokens with a real token in the last group, else 0."""
    low_y, low_x, high_y, high_x = 0, 0, height - 1, width - 1
    if HAS_MASK:
        part = box + tl.arange(0, BOXES) * 4
        low_y, low_x = tl.min(tl.load(part), 0), tl.min(tl.load(part + 1), 0)
        high_y, high_x = tl.max(tl.load(part + 2), 0), tl.max(tl.load(part + 3), 0)
    farthest = tl.maximum(tl.maximum(y - low_y, high_y - y), tl.maximum(x - low_x, high_x - x))
    return tl.where(farthest > REACH, 1.0, 0.0)


@triton.jit
def _break_stick(
    base, tokens, groups, stride_n, stride_r, N, REACH: tl.constexpr, STICK: tl.constexpr
):
    """Return the share of the remaining stick that each group takes, and the share it leaves.

    A group beyond REACH takes all of it, a group before 0 nothing.
    """
    odds = tl.exp(_load_weights(base, tokens, groups, stride_n, stride_r, N, REACH + 1))
    if STICK == 1:
        odds = odds / tl.maximum(REACH + 1 - groups, 1)[None, :]
    # Computed separately: small shares keep their digits, and odds may be infinite.
    taken = tl.where((groups <= REACH)[None, :], 1 / (1 + 1 / odds), 1.0)
    return taken, tl.where((groups >= 0)[None, :], 1 / (1 + odds), 1.0)


@triton.jit
def _load_weights(base, tokens, groups, stride_n, stride_r, N, size: tl.constexpr):
    tokens = tokens.to(tl.int64)
    inside = (tokens < N)[:, None] & ((groups >= 0) & (groups < size))[None, :]
    at = base + tokens[:, None] * stride_n + groups[None, :] * stride_r
    return tl.load(at, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _ring_weights(
    base, tokens, groups, some_far, stride_n, stride_r, N,
    REACH: tl.constexpr, STICK: tl.constexpr,
):  # fmt: skip
    """Return weights of the last group (tokens,), and the excess of the others (tokens, groups).

    The excess is 0 from the last group on. The last weight is 0 where that group is empty: sums of
    the whole map minus the near tokens would leave rounding errors.
    """
    if STICK:
        taken, _ = _break_stick(base, tokens, groups, stride_n, stride_r, N, REACH, STICK)
        _, left = _break_stick(base, tokens, groups - 1, stride_n, stride_r, N, REACH, STICK)
        weights = tl.cumprod(left, 1) * taken
    else:
        weights = _load_weights(base, tokens, groups, stride_n, stride_r, N, REACH + 2)
    last = tl.sum(tl.where((groups == REACH + 1)[None, :], weights, 0.0), 1) * some_far
    return last, tl.where((groups <= REACH)[None, :], weights - last[:, None], 0.0)


@triton.jit
def _pick(near, distance, REACH: tl.constexpr):
    """Select the value of (T, groups) for pairs of tokens (T, K); 0 beyond REACH."""
    return tl.gather(near, tl.minimum(distance, REACH + 1), 1)


@triton.jit
def _stick_backward(
    d_weight, groups, base, tokens, stride_n, stride_r, N,
    REACH: tl.constexpr, STICK: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of the logits, (tokens, groups), from that of the weights.

    With the share s_r and the remaining stick left_r it is ``left_r s_r (1 - s_r)`` times a
    difference: ``d_weight_r`` less its mean over the rest of the stick.
    """
    shares, rests = _break_stick(base, tokens, groups, stride_n, stride_r, N, REACH, STICK)
    d_logit = tl.zeros(d_weight.shape, tl.float32)
    mean = tl.sum(tl.where(groups[None, :] == REACH + 1, d_weight, 0.0), 1)
    for i in tl.static_range(REACH + 1):
        here = groups[None, :] == REACH - i
        taken = tl.sum(tl.where(here, shares, 0.0), 1)
        rest = tl.sum(tl.where(here, rests, 0.0), 1)
        excess = tl.sum(tl.where(here, d_weight, 0.0), 1) - mean
        # Outer groups share the rest that this group leaves.
        d_logit = tl.where(here, (taken * rest * excess)[:, None], d_logit * rest[:, None])
        mean += taken * excess
    return d_logit


@triton.jit
def _box_kernel(MASK, BOX, N, height, width, CHUNK, BN: tl.constexpr):
    """Find the bounding box of the real tokens of a chunk: low row, column, high row, column."""
    image, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    low_y, low_x = tl.full((), 1 << 30, tl.int32), tl.full((), 1 << 30, tl.int32)
    high_y, high_x = tl.full((), -(1 << 30), tl.int32), tl.full((), -(1 << 30), tl.int32)
    for start in range(part * CHUNK, tl.minimum((part + 1) * CHUNK, N), BN):
        rows = start + tl.arange(0, BN)
        real = real_tokens(MASK + image * N, rows, N, True)
        y, x = rows // width, rows % width
        low_y = tl.minimum(low_y, tl.min(tl.where(real, y, 1 << 30), 0))
        low_x = tl.minimum(low_x, tl.min(tl.where(real, x, 1 << 30), 0))
        high_y = tl.maximum(high_y, tl.max(tl.where(real, y, -(1 << 30)), 0))
        high_x = tl.maximum(high_x, tl.max(tl.where(real, x, -(1 << 30)), 0))
    at = BOX + (image * tl.num_programs(1) + part) * 4
    tl.store(at, low_y)
    tl.store(at + 1, low_x)
    tl.store(at + 2, high_y)
    tl.store(at + 3, high_x)


@triton.jit
def _forward_kernel(
    Q, K, V, WEIGHT, BOX, MASK, SUMS, COUNT, OUT, NORM,
    sqb, sqh, sqn, sqd, skb, skh, skn, skd, svb, svh, svn, svd, swb, swh, swn, swr,
    sxb, sxh, sxn, sxd, H, N, height, width, eps,
    D: tl.constexpr, T: tl.constexpr, REACH: tl.constexpr, BX: tl.constexpr, BK: tl.constexpr,
    BD: tl.constexpr, BR: tl.constexpr, BOXES: tl.constexpr, HAS_MASK: tl.constexpr,
    STICK: tl.constexpr,
):  # fmt: skip
    head, top, left, qy, qx, rows = _tile_tokens(T, height, width)
    b, h = head // H, head % H
    kind = Q.dtype.element_ty
    cols, groups = tl.arange(0, BD), tl.arange(0, BR)
    some_far = _some_far(BOX + b * BOXES * 4, qy, qx, height, width, REACH, BOXES, HAS_MASK)
    far, near = _ring_weights(
        WEIGHT + b * swb + h * swh, rows, groups, some_far, swn, swr, N, REACH, STICK
    )
    q = load_rows(Q + b * sqb + h * sqh, rows, cols, sqn, sqd, N, D)
    # Scores of scaled queries fit float16; total and norm are linear in them.
    scale = tl.maximum(tl.max(q, 1), 1.0)
    q = q / scale[:, None]
    total, norm = tl.zeros((T * T, BD), tl.float32), tl.zeros((T * T,), tl.float32)
    for i in range(0, tl.cdiv(T + 2 * REACH, BK // BX)):
        ky, kx, keys = _halo_tokens(i, top, left, T, REACH, BX, BK, height, width)
        real = real_tokens(MASK + b * N, keys, N, HAS_MASK)
        k = load_rows(K + b * skb + h * skh, keys, cols, skn, skd, N, D)
        v = load_rows(V + b * svb + h * svh, keys, cols, svn, svd, N, D)
        local = _pick(near, _distance(qy, qx, ky, kx), REACH)
        scores = tl.where(real[None, :], product(q, tl.trans(k), kind) * local, 0.0)
        total += product(scores, v, kind)
        norm += tl.sum(scores, 1)
    SUMS += head * (BD + 1) * BD
    state = tl.load(SUMS + cols[:, None] * BD + cols[None, :])
    z = tl.load(SUMS + BD * BD + cols)
    mass = tl.load(COUNT + head)
    total = total / mass + product(q, state, kind) * far[:, None]
    norm = (norm + eps / scale) / mass + tl.sum(q * z[None, :], 1) * far
    store_rows(OUT + b * sxb + h * sxh, total / norm[:, None], rows, cols, sxn, sxd, N, D)
    tl.store(NORM + head * N + rows, norm * scale, mask=rows < N)


@triton.jit
def _shared_value(SUMS, BD: tl.constexpr):
    """Split S (BD, BD) into the part that all values share (BD,) and the rest; return z as well."""
    cols = tl.arange(0, BD)
    state = tl.load(SUMS + cols[:, None] * BD + cols[None, :])
    z = tl.load(SUMS + BD * BD + cols)
    shared = tl.sum(state * z[:, None], 0) / tl.maximum(tl.sum(z * z), 1e-30)
    return state - z[:, None] * shared[None, :], z, shared


@triton.jit
def _weight_backward_kernel(
    Q, K, V, WEIGHT, BOX, MASK, SUMS, COUNT, NORM, DOUT, DWEIGHT, DNORM,
    sqb, sqh, sqn, sqd, skb, skh, skn, skd, svb, svh, svn, svd, swb, swh, swn, swr,
    sgb, sgh, sgn, sgd, H, N, height, width, eps,
    D: tl.constexpr, T: tl.constexpr, REACH: tl.constexpr, BX: tl.constexpr, BK: tl.constexpr,
    BD: tl.constexpr, BR: tl.constexpr, BOXES: tl.constexpr, HAS_MASK: tl.constexpr,
    STICK: tl.constexpr,
):  # fmt: skip
    """Compute gradients of the weights or logits, and of each normaliser times itself.

    Gradients of the weights are small differences. The factor of the normaliser's gradient is
    therefore summed separately, not taken from the rounded output. The common part of all values
    is subtracted for the same reason, and added to the stored gradient only.
    """
    head, top, left, qy, qx, rows = _tile_tokens(T, height, width)
    b, h = head // H, head % H
    kind = Q.dtype.element_ty
    cols, groups = tl.arange(0, BD), tl.arange(0, BR)
    some_far = _some_far(BOX + b * BOXES * 4, qy, qx, height, width, REACH, BOXES, HAS_MASK)
    weight_base = WEIGHT + b * swb + h * swh
    far, near = _ring_weights(weight_base, rows, groups, some_far, swn, swr, N, REACH, STICK)
    q = load_rows(Q + b * sqb + h * sqh, rows, cols, sqn, sqd, N, D)
    grad = load_rows(DOUT + b * sgb + h * sgh, rows, cols, sgn, sgd, N, D)
    state, z, shared = _shared_value(SUMS + head * (BD + 1) * BD, BD)
    mass = tl.load(COUNT + head)
    d_far = product(grad, tl.trans(state), kind)
    d_far_z = tl.sum(q * z[None, :], 1)
    agreement = far * tl.sum(q * d_far, 1)  # of the sum over values with its gradient
    d_last = tl.sum(q * d_far, 1)
    d_weight, d_weight_norm = tl.zeros((T * T, BR), tl.float32), tl.zeros((T * T, BR), tl.float32)
    for i in range(0, tl.cdiv(T + 2 * REACH, BK // BX)):
        ky, kx, keys = _halo_tokens(i, top, left, T, REACH, BX, BK, height, width)
        real = real_tokens(MASK + b * N, keys, N, HAS_MASK)
        k = load_rows(K + b * skb + h * skh, keys, cols, skn, skd, N, D)
        v = load_rows(V + b * svb + h * svh, keys, cols, svn, svd, N, D) - shared[None, :]
        distance = tl.where(real[None, :], _distance(qy, qx, ky, kx), REACH + 1)
        kernel = product(q, tl.trans(k), kind)
        d_scores = product(grad, tl.trans(v), kind) * kernel
        for r in tl.static_range(REACH + 1):
            here, ring = groups[None, :] == r, distance == r
            of_ring = tl.sum(tl.where(ring, d_scores, 0.0), 1)
            d_weight += tl.where(here, of_ring[:, None], 0.0)
            of_ring = tl.sum(tl.where(ring, kernel, 0.0), 1)
            d_weight_norm += tl.where(here, of_ring[:, None], 0.0)
    agreement += tl.sum(d_weight * near, 1) / mass
    norm = tl.load(NORM + head * N + rows, mask=rows < N, other=1.0)
    d_shared = tl.sum(grad * shared[None, :], 1)
    d_norm = (eps / mass * d_shared - agreement) / norm
    tl.store(DNORM + head * N + rows, d_norm, mask=rows < N)
    d_weight = (d_weight + d_norm[:, None] * d_weight_norm) * (1 / norm / mass)[:, None]
    of_last = (d_last + d_norm * d_far_z) / norm - tl.sum(d_weight, 1)
    of_last *= some_far
    d_weight += tl.where(groups[None, :] == REACH + 1, of_last[:, None], 0.0)
    size: tl.constexpr = REACH + (1 if STICK else 2)
    if STICK:
        d_weight = _stick_backward(d_weight, groups, weight_base, rows, swn, swr, N, REACH, STICK)
    store_rows(DWEIGHT + head * N * size, d_weight, rows, groups, size, 1, N, size)


@triton.jit
def _query_backward_kernel(
    Q, K, V, WEIGHT, BOX, MASK, SUMS, COUNT, NORM, DNORM, DOUT, DQ,
    skb, skh, skn, skd, svb, svh, svn, svd, swb, swh, swn, swr,
    sxb, sxh, sxn, sxd, sgb, sgh, sgn, sgd, H, N, height, width,
    D: tl.constexpr, T: tl.constexpr, REACH: tl.constexpr, BX: tl.constexpr, BK: tl.constexpr,
    BD: tl.constexpr, BR: tl.constexpr, BOXES: tl.constexpr, HAS_MASK: tl.constexpr,
    STICK: tl.constexpr,
):  # fmt: skip
    head, top, left, qy, qx, rows = _tile_tokens(T, height, width)
    b, h = head // H, head % H
    kind = Q.dtype.element_ty
    cols, groups = tl.arange(0, BD), tl.arange(0, BR)
    some_far = _some_far(BOX + b * BOXES * 4, qy, qx, height, width, REACH, BOXES, HAS_MASK)
    far, near = _ring_weights(
        WEIGHT + b * swb + h * swh, rows, groups, some_far, swn, swr, N, REACH, STICK
    )
    grad = load_rows(DOUT + b * sgb + h * sgh, rows, cols, sgn, sgd, N, D)
    d_norm = tl.load(DNORM + head * N + rows, mask=rows < N, other=0.0)
    state, z, shared = _shared_value(SUMS + head * (BD + 1) * BD, BD)
    mass = tl.load(COUNT + head)
    dq = (product(grad, tl.trans(state), kind) + d_norm[:, None] * z[None, :]) * far[:, None]
    dq *= mass
    for i in range(0, tl.cdiv(T + 2 * REACH, BK // BX)):
        ky, kx, keys = _halo_tokens(i, top, left, T, REACH, BX, BK, height, width)
        real = real_tokens(MASK + b * N, keys, N, HAS_MASK)
        k = load_rows(K + b * skb + h * skh, keys, cols, skn, skd, N, D)
        v = load_rows(V + b * svb + h * svh, keys, cols, svn, svd, N, D) - shared[None, :]
        local = _pick(near, _distance(qy, qx, ky, kx), REACH)
        d_scores = (product(grad, tl.trans(v), kind) + d_norm[:, None]) * local
        dq += product(tl.where(real[None, :], d_scores, 0.0), k, kind)
    norm = tl.load(NORM + head * N + rows, mask=rows < N, other=1.0)
    dq *= (1 / norm / mass)[:, None]
    store_rows(DQ + b * sxb + h * sxh, dq, rows, cols, sxn, sxd, N, D)
    # From here on the full values, including their common part.
    d_shared = tl.sum(grad * shared[None, :], 1)
    tl.store(DNORM + head * N + rows, d_norm - d_shared, mask=rows < N)


@triton.jit
def _far_backward_kernel(
    Q, WEIGHT, BOX, COUNT, NORM, DNORM, DOUT, DSUMS,
    sqb, sqh, sqn, sqd, swb, swh, swn, swr, sgb, sgh, sgn, sgd, H, N, height, width, CHUNK,
    D: tl.constexpr, REACH: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BR: tl.constexpr,
    BOXES: tl.constexpr, HAS_MASK: tl.constexpr, STICK: tl.constexpr,
):  # fmt: skip
    """Compute gradients of the sums of linear attention over a chunk of queries."""
    head, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    b, h = head // H, head % H
    kind = Q.dtype.element_ty
    cols, groups = tl.arange(0, BD), tl.arange(0, BR)
    d_state, d_z = tl.zeros((BD, BD), tl.float32), tl.zeros((BD,), tl.float32)
    for start in range(split * CHUNK, tl.minimum((split + 1) * CHUNK, N), BN):
        rows = start + tl.arange(0, BN)
        q = load_rows(Q + b * sqb + h * sqh, rows, cols, sqn, sqd, N, D)
        some_far = _some_far(
            BOX + b * BOXES * 4, rows // width, rows % width, height, width, REACH, BOXES, HAS_MASK
        )
        far, _ = _ring_weights(
            WEIGHT + b * swb + h * swh, rows, groups, some_far, swn, swr, N, REACH, STICK
        )
        norm = tl.load(NORM + head * N + rows, mask=rows < N, other=1.0)
        q *= (far / norm)[:, None]
        grad = load_rows(DOUT + b * sgb + h * sgh, rows, cols, sgn, sgd, N, D)
        d_norm = tl.load(DNORM + head * N + rows, mask=rows < N, other=0.0)
        d_state = add_product(d_state, tl.trans(q), grad, kind)
        d_z += tl.sum(q * d_norm[:, None], 0)
    # Divided by its root, which keeps the keys' factors in range whatever their signs.
    root = tl.sqrt(tl.load(COUNT + head))
    DSUMS += (head * tl.num_programs(1) + split) * (BD + 1) * BD
    tl.store(DSUMS + cols[:, None] * BD + cols[None, :], d_state / root)
    tl.store(DSUMS + BD * BD + cols, d_z / root)


@triton.jit
def _key_backward_kernel(
    Q, K, V, WEIGHT, BOX, MASK, NORM, DNORM, DOUT, DSUMS, COUNT, DK, DV,
    sqb, sqh, sqn, sqd, skb, skh, skn, skd, svb, svh, svn, svd, swb, swh, swn, swr,
    sxb, sxh, sxn, sxd, sgb, sgh, sgn, sgd, H, N, height, width,
    D: tl.constexpr, T: tl.constexpr, REACH: tl.constexpr, BX: tl.constexpr, BK: tl.constexpr,
    BD: tl.constexpr, BR: tl.constexpr, BOXES: tl.constexpr, HAS_MASK: tl.constexpr,
    STICK: tl.constexpr,
):  # fmt: skip
    head, top, left, ky, kx, rows = _tile_tokens(T, height, width)
    b, h = head // H, head % H
    kind = Q.dtype.element_ty
    cols, groups = tl.arange(0, BD), tl.arange(0, BR)
    real = real_tokens(MASK + b * N, rows, N, HAS_MASK)
    k = load_rows(K + b * skb + h * skh, rows, cols, skn, skd, N, D)
    v = load_rows(V + b * svb + h * svh, rows, cols, svn, svd, N, D)
    DSUMS += head * (BD + 1) * BD
    d_state = tl.load(DSUMS + cols[:, None] * BD + cols[None, :])
    root = tl.sqrt(tl.load(COUNT + head))
    dk = product(v, tl.trans(d_state), kind)
    dk += tl.load(DSUMS + BD * BD + cols)[None, :]
    dv = product(k, d_state, kind)
    for i in range(0, tl.cdiv(T + 2 * REACH, BK // BX)):
        qy, qx, tokens = _halo_tokens(i, top, left, T, REACH, BX, BK, height, width)
        q = load_rows(Q + b * sqb + h * sqh, tokens, cols, sqn, sqd, N, D)
        grad = load_rows(DOUT + b * sgb + h * sgh, tokens, cols, sgn, sgd, N, D)
        q = q / tl.load(NORM + head * N + tokens, mask=tokens < N, other=1.0)[:, None]
        d_norm = tl.load(DNORM + head * N + tokens, mask=tokens < N, other=0.0)
        some_far = _some_far(BOX + b * BOXES * 4, qy, qx, height, width, REACH, BOXES, HAS_MASK)
        _, near = _ring_weights(
            WEIGHT + b * swb + h * swh, tokens, groups, some_far, swn, swr, N, REACH, STICK
        )
        local = _pick(near, _distance(qy, qx, ky, kx), REACH)  # [queries, keys]
        scores = product(q, tl.trans(k), kind) * local / root
        dv += product(tl.trans(scores), grad, kind)
        d_scores = (product(grad, tl.trans(v), kind) + d_norm[:, None]) * local
        dk += product(tl.trans(d_scores), q, kind) / root
    dk, dv = dk / root, dv / root
    dk, dv = tl.where(real[:, None], dk, 0.0), tl.where(real[:, None], dv, 0.0)
    store_rows(DK + b * sxb + h * sxh, dk, rows, cols, sxn, sxd, N, D)
    store_rows(DV + b * sxb + h * sxh, dv, rows, cols, sxn, sxd, N, D)


class RippleLaunch(Launch):
    """Launcher with the sizes and options of the kernels over tiles."""

    def __init__(
        self,
        q: Tensor,
        weights: Tensor,
        hw_shape: Tuple[int, int],
        mask: Optional[Tensor],
        stick: Optional[str],
    ) -> None:
        super().__init__(q, mask)
        height, width = hw_shape
        tiles = triton.cdiv(height, TILE) * triton.cdiv(width, TILE)
        self.tiles = (self.batch * self.heads * tiles,)
        self.sizes = (self.heads, self.num_tokens, height, width)
        num_groups = weights.shape[-1] + (stick is not None)
        reach = num_groups - 2  # of the halo: the last distance with its own weight
        self.columns = triton.next_power_of_2(TILE + 2 * reach)
        self.weights: Dict[str, int] = dict(
            D=self.dim, BD=self.bd, BR=triton.next_power_of_2(num_groups), REACH=reach,
            STICK=STICKS[stick], BOXES=BOXES,
        )  # fmt: skip

    def over_tiles(self, name: str, kernel, *args, **flags) -> None:
        """Launch one program per tile."""
        block = max(self.plan(name).config.block, self.columns)
        self.start(
            name, kernel, self.tiles, *args, **flags, T=TILE, BX=self.columns, BK=block,
            **self.weights, **self.has_mask,
        )  # fmt: skip

    def boxes(self) -> Tensor:
        """Return bounding boxes of the real tokens, (B, BOXES, 4) int32; empty without padding."""
        if not self.has_mask['HAS_MASK']:
            return torch.empty(0, dtype=torch.int32, device=self.device)
        box = torch.empty(self.batch, BOXES, 4, dtype=torch.int32, device=self.device)
        chunk = triton.cdiv(self.num_tokens, BOXES)
        _box_kernel[self.batch, BOXES](self.mask, box, *self.sizes[1:], chunk, BN=1024)
        return box


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    weights: Tensor,
    height: int,
    width: int,
    mask: Optional[Tensor],
    eps: float,
    stick: Optional[str],
) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return output, normalisers (B, heads, N), S and z of the keys, their number, and boxes."""
    state = make_kv_state(k, v, None, KeyLaunch(q, mask, 0, kind=''))
    launch = RippleLaunch(q, weights, (height, width), mask, stick)
    out, norm, box = token_major(q), launch.empty(launch.num_tokens), launch.boxes()
    launch.over_tiles(
        'ripple', _forward_kernel,
        q, k, v, weights, box, launch.mask, state.sums, state.total, out, norm,
        *strides(q), *strides(k), *strides(v), *strides(weights), *strides(out), *launch.sizes, eps,
    )  # fmt: skip
    return out, norm, state.sums, state.total, box


def backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    weights: Tensor,
    mask: Optional[Tensor],
    norm: Tensor,
    sums: Tensor,
    count: Tensor,
    box: Tensor,
    height: int,
    width: int,
    eps: float,
    stick: Optional[str],
) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return gradients of q, k, v and weights (logits with ``stick``)."""
    launch = RippleLaunch(q, weights, (height, width), mask, stick)
    dq, dk, dv = (token_major(x) for x in (q, k, v))
    d_weights = torch.empty(weights.shape, dtype=weights.dtype, device=q.device)
    d_norm = torch.empty_like(norm)
    of_q, of_k, of_v, of_weights, of_grad, of_out = map(strides, (q, k, v, weights, grad, dq))
    launch.over_tiles(
        'ripple_weight_backward', _weight_backward_kernel,
        q, k, v, weights, box, launch.mask, sums, count, norm, grad, d_weights, d_norm,
        *of_q, *of_k, *of_v, *of_weights, *of_grad, *launch.sizes, eps,
    )  # fmt: skip
    launch.over_tiles(
        'ripple_query_backward', _query_backward_kernel,
        q, k, v, weights, box, launch.mask, sums, count, norm, d_norm, grad, dq,
        *of_k, *of_v, *of_weights, *of_out, *of_grad, *launch.sizes,
    )  # fmt: skip
    name, size = 'ripple_far_backward', (launch.bd + 1, launch.bd)
    parts = launch.parts(name, 1, *size)
    launch.run(
        name, _far_backward_kernel, q, weights, box, count, norm, d_norm, grad, parts,
        *of_q, *of_weights, *of_grad, *launch.sizes, **launch.weights, **launch.has_mask,
    )  # fmt: skip
    d_sums = add_chunks(parts, launch.empty(*size))
    launch.over_tiles(
        'ripple_key_backward', _key_backward_kernel,
        q, k, v, weights, box, launch.mask, norm, d_norm, grad, d_sums, count, dk, dv,
        *of_q, *of_k, *of_v, *of_weights, *of_out, *of_grad, *launch.sizes,
    )  # fmt: skip
    return dq, dk, dv, d_weights
