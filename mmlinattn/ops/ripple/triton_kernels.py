"""Kernels of ripple attention by tiles; scores and spatial weights stay in registers.

As in the torch implementation the last weight is subtracted everywhere,
``w_g = w_R + (w_g - w_R)``. The first term uses the sums of linear attention. The second ends at
distance R, so a tile of 8 x 8 queries attends to the keys of its halo. The backward pass processes
tiles of queries (gradients of queries and weights) and tiles of keys; no two programs write to
the same address. The ring weights of a token are computed once per tile, and each pair of tokens
selects its own.

Normalisers and sums are means over all keys ("mass" is their number), which keeps float16 in range.
For the same reason a product is never divided by a normaliser before its compensating factor.
"""

import functools
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..common.kv_state import KVStateLaunches
from ..common.launch import KernelOperator, Launch, Memory, as_bytes
from ..common.numerics import token_major
from ..common.partition import (
    CallKey,
    padded,
    split_tokens,
    token_strides,
    unsupported_tokens,
)
from ..common.reduction import sum_of_chunks
from ..common.triton_helpers import (
    add_product,
    kernel,
    load_rows,
    product,
    product_across,
    real_tokens,
    store_rows,
    transposed,
)
from .groups import RippleOptions

KERNELS = (
    'kv_state', 'ripple', 'ripple_query_backward', 'ripple_far_backward', 'ripple_key_backward',
)  # fmt: skip
TILE = 8
# Reach of the halo of a tile; beyond it summed-area tables cost less.
MAX_DISTANCE = 16


def unsupported_reason(
    q: Tensor, v: Tensor, weights: Tensor, options: RippleOptions
) -> Optional[str]:
    """Return why the kernels cannot serve the call, or None if they can."""
    max_distance = weights.shape[-1] - 1
    if options.groups != 'chebyshev':
        return f'groups={options.groups!r} have no kernel'
    if not 1 <= max_distance <= MAX_DISTANCE:
        return f'kernels support R from 1 to {MAX_DISTANCE}, got {max_distance}'
    return unsupported_tokens(q, v.shape[3], KERNELS)


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
def _halo_tokens(i, top, left, T: tl.constexpr, REACH: tl.constexpr,
                 BX: tl.constexpr, BK: tl.constexpr, height, width):  # fmt: skip
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
def _load_weights(base, tokens, groups, stride_n, stride_r, N, size: tl.constexpr):
    """Load the weights of tokens as float32 (tokens, groups), 0 outside."""
    tokens = tokens.to(tl.int64)
    inside = (tokens < N)[:, None] & ((groups >= 0) & (groups < size))[None, :]
    at = base + tokens[:, None] * stride_n + groups[None, :] * stride_r
    return tl.load(at, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _ring_weights(base, tokens, groups, stride_n, stride_r, N, REACH: tl.constexpr):
    """Return weights of the last group (tokens,), and the excess of the others (tokens, groups).

    The excess is 0 from the last group on.
    """
    weights = _load_weights(base, tokens, groups, stride_n, stride_r, N, REACH + 2)
    last = tl.sum(tl.where((groups == REACH + 1)[None, :], weights, 0.0), 1)
    return last, tl.where((groups <= REACH)[None, :], weights - last[:, None], 0.0)


@triton.jit
def _pick(near, distance, REACH: tl.constexpr):
    """Select the value of (T, groups) for pairs of tokens (T, K); 0 beyond REACH."""
    return tl.gather(near, tl.minimum(distance, REACH + 1), 1)


@kernel
def _forward_kernel(
    Q, K, V, WEIGHT, MASK, SUMS, MASS, OUT, NORM,
    sqb, sqh, sqn, sqd, skb, skh, skn, skd, svb, svh, svn, svd, swb, swh, swn, swr,
    sxb, sxh, sxn, sxd, H, N, height, width, eps,
    D: tl.constexpr, T: tl.constexpr, REACH: tl.constexpr, BX: tl.constexpr,
    BK: tl.constexpr, BD: tl.constexpr, BR: tl.constexpr, HAS_MASK: tl.constexpr,
):  # fmt: skip
    """Compute the output of a tile of queries, and their normalisers."""
    head, top, left, qy, qx, rows = _tile_tokens(T, height, width)
    b, h = head // H, head % H
    kind = Q.dtype.element_ty
    cols, groups = tl.arange(0, BD), tl.arange(0, BR)
    far, near = _ring_weights(WEIGHT + b * swb + h * swh, rows, groups, swn, swr, N, REACH)
    q = load_rows(Q + b * sqb + h * sqh, rows, cols, sqn, sqd, N, D)
    # Scores of scaled queries fit float16; total and norm are linear in them.
    scale = tl.maximum(tl.max(q, 1), 1.0)
    q *= (1 / scale)[:, None]
    total, norm = tl.zeros((T * T, BD), tl.float32), tl.zeros((T * T,), tl.float32)
    for i in range(0, tl.cdiv(T + 2 * REACH, BK // BX)):
        ky, kx, keys = _halo_tokens(i, top, left, T, REACH, BX, BK, height, width)
        real = real_tokens(MASK + b * N, keys, N, HAS_MASK)
        k = load_rows(K + b * skb + h * skh, keys, cols, skn, skd, N, D)
        v = load_rows(V + b * svb + h * svh, keys, cols, svn, svd, N, D)
        local = _pick(near, _distance(qy, qx, ky, kx), REACH)
        scores = tl.where(real[None, :], product(q, transposed(k, kind), kind) * local, 0.0)
        total += product(scores, v, kind)
        norm += tl.sum(scores, 1)
    SUMS += head * (BD + 1) * BD
    state = tl.load(SUMS + cols[:, None] * BD + cols[None, :])
    z = tl.load(SUMS + BD * BD + cols)
    mass = tl.load(MASS + head)
    total = total * (1 / mass) + product(q, state, kind) * far[:, None]
    norm = (norm + eps / scale) / mass + tl.sum(q * z[None, :], 1) * far
    store_rows(OUT + b * sxb + h * sxh, total * (1 / norm)[:, None], rows, cols, sxn, sxd, N, D)
    tl.store(NORM + head * N + rows, norm * scale, mask=rows < N)


@triton.jit
def _shared_value(SUMS, BD: tl.constexpr):
    """Split S (BD, BD) into the part that all values share (BD,) and the rest; return z as well."""
    cols = tl.arange(0, BD)
    state = tl.load(SUMS + cols[:, None] * BD + cols[None, :])
    z = tl.load(SUMS + BD * BD + cols)
    shared = tl.sum(state * z[:, None], 0) / tl.maximum(tl.sum(z * z), 1e-30)
    return state - z[:, None] * shared[None, :], z, shared


@kernel
def _query_backward_kernel(
    Q, K, V, WEIGHT, MASK, SUMS, MASS, NORM, DOUT, DQ, DWEIGHT, DNORM,
    sqb, sqh, sqn, sqd, skb, skh, skn, skd, svb, svh, svn, svd, swb, swh, swn, swr,
    sxb, sxh, sxn, sxd, sgb, sgh, sgn, sgd, H, N, height, width, eps,
    D: tl.constexpr, T: tl.constexpr, REACH: tl.constexpr, BX: tl.constexpr,
    BK: tl.constexpr, BD: tl.constexpr, BR: tl.constexpr, HAS_MASK: tl.constexpr,
):  # fmt: skip
    """Compute gradients of queries and weights, and of each normaliser times itself.

    Gradients of the weights are small differences. So the factor of the normaliser's gradient is
    summed separately, not taken from the rounded output. Its counterpart in the gradient of a
    query is summed separately, too. The common part of all values is subtracted for the same
    reason, and added to the stored gradient only.
    """
    head, top, left, qy, qx, rows = _tile_tokens(T, height, width)
    b, h = head // H, head % H
    kind = Q.dtype.element_ty
    cols, groups = tl.arange(0, BD), tl.arange(0, BR)
    far, near = _ring_weights(WEIGHT + b * swb + h * swh, rows, groups, swn, swr, N, REACH)
    q = load_rows(Q + b * sqb + h * sqh, rows, cols, sqn, sqd, N, D)
    grad = load_rows(DOUT + b * sgb + h * sgh, rows, cols, sgn, sgd, N, D)
    state, z, shared = _shared_value(SUMS + head * (BD + 1) * BD, BD)
    mass = tl.load(MASS + head)
    d_shared = tl.sum(grad * shared[None, :], 1)
    d_far = product(grad, transposed(state, kind), kind)
    d_far_z = tl.sum(q * z[None, :], 1)
    agreement = far * tl.sum(q * d_far, 1)  # of the sum over values with its gradient
    d_last = tl.sum(q * d_far, 1)
    dq, dq_norm = d_far * (far * mass)[:, None], z[None, :] * (far * mass)[:, None]
    d_weight, d_weight_norm = tl.zeros((T * T, BR), tl.float32), tl.zeros((T * T, BR), tl.float32)
    for i in range(0, tl.cdiv(T + 2 * REACH, BK // BX)):
        ky, kx, keys = _halo_tokens(i, top, left, T, REACH, BX, BK, height, width)
        real = real_tokens(MASK + b * N, keys, N, HAS_MASK)
        k = load_rows(K + b * skb + h * skh, keys, cols, skn, skd, N, D)
        v = load_rows(V + b * svb + h * svh, keys, cols, svn, svd, N, D)
        distance = tl.where(real[None, :], _distance(qy, qx, ky, kx), REACH + 1)
        kernel = product(q, transposed(k, kind), kind)
        d_scores = product(grad, transposed(v, kind), kind) - d_shared[:, None]
        local = _pick(near, distance, REACH)
        dq_norm += product(local, k, kind)
        dq += product(d_scores * local, k, kind)
        d_scores *= kernel
        for r in tl.static_range(REACH + 1):
            here, ring = groups[None, :] == r, distance == r
            of_ring = tl.sum(tl.where(ring, d_scores, 0.0), 1)
            d_weight += tl.where(here, of_ring[:, None], 0.0)
            of_ring = tl.sum(tl.where(ring, kernel, 0.0), 1)
            d_weight_norm += tl.where(here, of_ring[:, None], 0.0)
    agreement += tl.sum(d_weight * near, 1) / mass
    norm = tl.load(NORM + head * N + rows, mask=rows < N, other=1.0)
    d_norm = (eps / mass * d_shared - agreement) / norm
    dq = (dq + d_norm[:, None] * dq_norm) * (1 / norm / mass)[:, None]
    store_rows(DQ + b * sxb + h * sxh, dq, rows, cols, sxn, sxd, N, D)
    # The other kernels take the full values, including their common part.
    tl.store(DNORM + head * N + rows, d_norm - d_shared, mask=rows < N)
    d_weight = (d_weight + d_norm[:, None] * d_weight_norm) * (1 / norm / mass)[:, None]
    of_last = (d_last + d_norm * d_far_z) / norm - tl.sum(d_weight, 1)
    d_weight += tl.where(groups[None, :] == REACH + 1, of_last[:, None], 0.0)
    size: tl.constexpr = REACH + 2
    store_rows(DWEIGHT + head * N * size, d_weight, rows, groups, size, 1, N, size)


@kernel
def _far_backward_kernel(
    Q, WEIGHT, MASS, NORM, DNORM, DOUT, DSUMS,
    sqb, sqh, sqn, sqd, swb, swh, swn, swr, sgb, sgh, sgn, sgd, H, N, CHUNK,
    D: tl.constexpr, REACH: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BR: tl.constexpr,
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
        far, _ = _ring_weights(WEIGHT + b * swb + h * swh, rows, groups, swn, swr, N, REACH)
        norm = tl.load(NORM + head * N + rows, mask=rows < N, other=1.0)
        q *= (far / norm)[:, None]
        grad = load_rows(DOUT + b * sgb + h * sgh, rows, cols, sgn, sgd, N, D)
        d_norm = tl.load(DNORM + head * N + rows, mask=rows < N, other=0.0)
        d_state = add_product(d_state, tl.trans(q), grad, kind)
        d_z += tl.sum(q * d_norm[:, None], 0)
    # Divided by its root, which keeps the keys' factors in range whatever their signs.
    root = tl.sqrt(tl.load(MASS + head))
    DSUMS += (head * tl.num_programs(1) + split) * (BD + 1) * BD
    tl.store(DSUMS + cols[:, None] * BD + cols[None, :], d_state / root)
    tl.store(DSUMS + BD * BD + cols, d_z / root)


@kernel
def _key_backward_kernel(
    Q, K, V, WEIGHT, MASK, NORM, DNORM, DOUT, DSUMS, MASS, DK, DV,
    sqb, sqh, sqn, sqd, skb, skh, skn, skd, svb, svh, svn, svd, swb, swh, swn, swr,
    sxb, sxh, sxn, sxd, sgb, sgh, sgn, sgd, H, N, height, width,
    D: tl.constexpr, T: tl.constexpr, REACH: tl.constexpr, BX: tl.constexpr,
    BK: tl.constexpr, BD: tl.constexpr, BR: tl.constexpr, HAS_MASK: tl.constexpr,
):  # fmt: skip
    """Compute gradients of the keys and values of a tile."""
    head, top, left, ky, kx, rows = _tile_tokens(T, height, width)
    b, h = head // H, head % H
    kind = Q.dtype.element_ty
    cols, groups = tl.arange(0, BD), tl.arange(0, BR)
    real = real_tokens(MASK + b * N, rows, N, HAS_MASK)
    k = load_rows(K + b * skb + h * skh, rows, cols, skn, skd, N, D)
    v = load_rows(V + b * svb + h * svh, rows, cols, svn, svd, N, D)
    DSUMS += head * (BD + 1) * BD
    d_state = tl.load(DSUMS + cols[:, None] * BD + cols[None, :])
    root = tl.sqrt(tl.load(MASS + head))
    inverse = 1 / root
    dk = product(v, transposed(d_state, kind), kind)
    dk = (dk + tl.load(DSUMS + BD * BD + cols)[None, :]) * root
    dv = product(k, d_state, kind)
    for i in range(0, tl.cdiv(T + 2 * REACH, BK // BX)):
        qy, qx, tokens = _halo_tokens(i, top, left, T, REACH, BX, BK, height, width)
        q = load_rows(Q + b * sqb + h * sqh, tokens, cols, sqn, sqd, N, D)
        grad = load_rows(DOUT + b * sgb + h * sgh, tokens, cols, sgn, sgd, N, D)
        q *= (1 / tl.load(NORM + head * N + tokens, mask=tokens < N, other=1.0))[:, None]
        d_norm = tl.load(DNORM + head * N + tokens, mask=tokens < N, other=0.0)
        _, near = _ring_weights(WEIGHT + b * swb + h * swh, tokens, groups, swn, swr, N, REACH)
        local = tl.trans(_pick(near, _distance(qy, qx, ky, kx), REACH))  # [keys, queries]
        scores = product_across(k, transposed(q, kind), kind) * (local * inverse)
        dv += product(scores, grad, kind)
        d_scores = (product_across(v, transposed(grad, kind), kind) + d_norm[None, :]) * local
        dk += product(d_scores, q, kind)
    dk, dv = dk * inverse * inverse, dv * inverse
    dk, dv = tl.where(real[:, None], dk, 0.0), tl.where(real[:, None], dv, 0.0)
    store_rows(DK + b * sxb + h * sxh, dk, rows, cols, sxn, sxd, N, D)
    store_rows(DV + b * sxb + h * sxh, dv, rows, cols, sxn, sxd, N, D)


class KernelOptions(NamedTuple):
    """Options of the kernels: height and width of the map, and eps of the normaliser."""

    height: int
    width: int
    eps: float


def _state(batch: int, heads: int, num_tokens: int, dim: int) -> Memory:
    """Return the layout of S and z of the keys, normalisers of queries, and number of keys."""
    size = padded(dim)
    return Memory((batch, heads, size + 1, size), (batch, heads, num_tokens), (batch, heads))


class _Launches:
    """Sizes that the launches of both passes share."""

    def __init__(self, key: CallKey) -> None:
        q, num_groups, options = key.tokens(0), key.shapes[3][-1], key.options
        self.key, self.q, self.heads, self.bd = key, q, (q.batch, q.heads), padded(q.dim)
        self.num_tiles = -(-options.height // TILE) * -(-options.width // TILE)
        self.sizes = (q.heads, q.num_tokens, options.height, options.width)
        self.state = _state(*self.heads, q.num_tokens, q.dim)
        reach = num_groups - 2  # of the halo: the last distance with its own weight
        self.columns = triton.next_power_of_2(TILE + 2 * reach)
        self.constants = dict(
            REACH=reach, HAS_MASK=key.shapes[4] is not None,
            # Triton 3.6 cannot compile a gather from two columns.
            BR=max(8, triton.next_power_of_2(num_groups)),
        )  # fmt: skip

    def over_tiles(self, name: str, kernel: Any, strides: Sequence[int], *sizes: float) -> Launch:
        """Return a launch of one program per tile."""
        config, columns, q = split_tokens(name, self.q)[0], self.columns, self.q
        block = max(config.block, columns)
        constants = dict(self.constants, D=q.dim, BD=self.bd, T=TILE, BX=columns, BK=block)
        grid, arguments = (q.batch * q.heads * self.num_tiles,), (*strides, *self.sizes, *sizes)
        return Launch(kernel, grid, arguments, constants, config, self.key.aligned)


@functools.lru_cache(maxsize=1024)
class _ForwardLaunches(_Launches):
    def __init__(self, key: CallKey) -> None:
        super().__init__(key)
        q, (_, k, v, weights, _) = self.q, key.strides
        self.kv_state = KVStateLaunches(
            key, 'kv_state', key.tokens(1), 0, 0, FEATURE=0, EXTRA_ROWS=1, ROTARY=0, PACKED=False,
            SCORED=False, HAS_MASK=self.constants['HAS_MASK'],
        )  # fmt: skip
        strides = (*q.strides, *k, *v, *weights, *token_strides(q))
        self.ripple = self.over_tiles('ripple', _forward_kernel, strides, key.options.eps)
        self.scratch = Memory(*self.kv_state.scratch)


def forward(options: KernelOptions, *tensors: Any) -> List[Tensor]:
    """Return the output and the state, see :func:`_state`.

    Args:
        options: options of the kernels.
        tensors: q, k, v (B, heads, N, d), weights (B, heads, N, R + 1), padding mask (B, N) or
            None.
    """
    q, k, v, weights, mask = tensors
    launches, padding = _ForwardLaunches(CallKey.of(options, *tensors)), as_bytes(mask, q)
    state, sums, norm, mass = launches.state.allocate(q, launches.ripple)
    _memory, *scratch = launches.scratch.allocate(q, launches.ripple)
    launches.kv_state(k, v, padding, q, q, sums, mass, scratch)
    out = token_major(q)
    launches.ripple(q, k, v, weights, padding, sums, mass, out, norm)
    return [out, state]


@functools.lru_cache(maxsize=1024)
class _BackwardLaunches(_Launches):
    def __init__(self, key: CallKey) -> None:
        super().__init__(key)
        q, (_, k, v, weights, _, grad), out = self.q, key.strides, token_strides(self.q)
        strides = (*q.strides, *k, *v, *weights, *out, *grad)
        self.queries = self.over_tiles(
            'ripple_query_backward', _query_backward_kernel, strides, key.options.eps
        )
        self.keys = self.over_tiles('ripple_key_backward', _key_backward_kernel, strides)
        self.far = key.over_tokens(
            'ripple_far_backward', _far_backward_kernel, q, (*q.strides, *weights, *grad),
            REACH=self.constants['REACH'], BR=self.constants['BR'],
        )  # fmt: skip
        splits, size = self.far.splits, (self.bd + 1, self.bd)
        self.add_sums = None
        if splits > 1:
            self.add_sums = sum_of_chunks(key, q.batch * q.heads, splits, *size)
        shapes = (q.num_tokens,), (splits, *size), *[size] * (splits > 1)
        self.scratch = Memory(*[(*self.heads, *shape) for shape in shapes])


def backward(
    options: KernelOptions, grads: Sequence[Tensor], tensors: Sequence[Any], saved: Sequence[Tensor]
) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of q, k, v and the weights."""
    (grad,), (q, k, v, weights, mask) = grads, tensors
    (state,) = saved
    launches = _BackwardLaunches(CallKey.of(options, *tensors, grad))
    sums, norm, mass = launches.state.parts(state, launches.keys)
    _memory, d_norm, d_sums, *total = launches.scratch.allocate(q, launches.keys)
    padding, d_weights = as_bytes(mask, q), weights.new_empty(weights.shape)
    dq, dk, dv = token_major(q), token_major(k), token_major(v)
    launches.queries(q, k, v, weights, padding, sums, mass, norm, grad, dq, d_weights, d_norm)
    launches.far(q, weights, mass, norm, d_norm, grad, d_sums)
    if launches.add_sums is not None:
        launches.add_sums(d_sums, d_sums, d_sums, *total * 3)
        (d_sums,) = total
    launches.keys(q, k, v, weights, padding, norm, d_norm, grad, d_sums, mass, dk, dv)
    return dq, dk, dv, d_weights


def _fake(options: KernelOptions, *tensors: Any) -> List[Tensor]:
    q = tensors[0]
    return [token_major(q), q.new_empty(_state(*q.shape).size, dtype=torch.float32)]


OPERATOR = KernelOperator(
    unsupported_reason, forward, backward, _fake, KernelOptions, num_sizes=2, num_gradients=4
)
