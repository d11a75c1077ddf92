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

from typing import Any, List, NamedTuple, Sequence, Tuple

import triton
import triton.language as tl
from torch import Tensor

from ..common.kv_state import KVStateLaunches
from ..common.launch import CallKey, KernelOperator, Launch, Memory, as_bytes, padded, token_strides
from ..common.numerics import token_major
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

TILE = 8


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
def _halo_columns(left, T: tl.constexpr, REACH: tl.constexpr, BX: tl.constexpr, width, N):
    """Return the columns of the halo of a tile, N outside the map."""
    place = tl.arange(0, BX)
    x = left - REACH + place
    return tl.where((place < T + 2 * REACH) & (x >= 0) & (x < width), x, N)


@triton.jit
def _weight_at(base, distance, stride_r, REACH: tl.constexpr):
    """Load the weights of tokens at a distance as float32, the last one beyond REACH."""
    return tl.load(base + tl.minimum(distance, REACH + 1) * stride_r).to(tl.float32)


@triton.jit
def _by_column(base, qx, left, stride_r, width, N, T: tl.constexpr, REACH: tl.constexpr,
               BX: tl.constexpr):  # fmt: skip
    """Return what the rows of the halo share, for queries at columns ``qx`` (T * T,).

    That is the last weight of each query (T * T,) and the columns of the halo (BX,). For pairs of
    both (T * T, BX) it is the distance, and by how much the weight there exceeds the last one.
    """
    last = _weight_at(base, REACH + 1, stride_r, REACH)
    kx = _halo_columns(left, T, REACH, BX, width, N)
    dx = tl.abs(qx[:, None] - kx[None, :])
    excess = tl.zeros(dx.shape, tl.float32)
    for r in tl.static_range(REACH + 1):
        weight = _weight_at(base, r, stride_r, REACH) - last
        excess = tl.where(dx == r, weight[:, None], excess)
    return last, kx, dx, excess


@kernel
def _forward_kernel(
    Q, K, V, WEIGHT, MASK, SUMS, MASS, OUT, NORM,
    sqb, sqh, sqn, sqd, skb, skh, skn, skd, svb, svh, svn, svd, swb, swh, swn, swr,
    sxb, sxh, sxn, sxd, H, N, height, width, eps,
    D: tl.constexpr, T: tl.constexpr, REACH: tl.constexpr, BX: tl.constexpr,
    BD: tl.constexpr, HAS_MASK: tl.constexpr,
):  # fmt: skip
    """Compute the output of a tile of queries, and their normalisers."""
    head, top, left, qy, qx, rows = _tile_tokens(T, height, width)
    b, h = head // H, head % H
    kind = Q.dtype.element_ty
    cols = tl.arange(0, BD)
    WEIGHT += b * swb + h * swh + tl.minimum(rows, N - 1).to(tl.int64) * swn
    far, kx, dx, of_column = _by_column(WEIGHT, qx, left, swr, width, N, T, REACH, BX)
    q = load_rows(Q + b * sqb + h * sqh, rows, cols, sqn, sqd, N, D)
    scale = tl.full((T * T,), 1.0, tl.float32)
    if kind == tl.float16:
        # Scores of scaled queries fit; total and norm are linear in them.
        scale = tl.maximum(tl.max(q, 1), 1.0)
        q *= (1 / scale)[:, None]
    SUMS += head * (BD + 1) * BD
    state = tl.load(SUMS + cols[:, None] * BD + cols[None, :])
    z = tl.load(SUMS + BD * BD + cols)
    mass = tl.load(MASS + head)
    total = product(q, state, kind) * (far * mass)[:, None]
    norm = tl.sum(q * z[None, :], 1) * (far * mass)
    norm += eps / scale
    for y in range(tl.maximum(top - REACH, 0), tl.minimum(top + T + REACH, height)):
        start = (y * width).to(tl.int64)
        k = load_rows(K + b * skb + h * skh + start * skn, kx, cols, skn, skd, N, D)
        v = load_rows(V + b * svb + h * svh + start * svn, kx, cols, svn, svd, N, D)
        dy = tl.abs(qy - y)
        of_row = _weight_at(WEIGHT, dy, swr, REACH) - far
        local = tl.where(dx <= dy[:, None], of_row[:, None], of_column)
        scores = product(q, transposed(k, kind), kind) * local
        if HAS_MASK:
            real = real_tokens(MASK + b * N + start, kx, N, HAS_MASK)
            scores = tl.where(real[None, :], scores, 0.0)
        total += product(scores, v, kind)
        norm += tl.sum(scores, 1)
    store_rows(OUT + b * sxb + h * sxh, total * (1 / norm)[:, None], rows, cols, sxn, sxd, N, D)
    tl.store(NORM + head * N + rows, norm * (scale / mass), mask=rows < N)


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
    BD: tl.constexpr, BR: tl.constexpr, HAS_MASK: tl.constexpr,
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
    WEIGHT += b * swb + h * swh + tl.minimum(rows, N - 1).to(tl.int64) * swn
    far, kx, dx, of_column = _by_column(WEIGHT, qx, left, swr, width, N, T, REACH, BX)
    q = load_rows(Q + b * sqb + h * sqh, rows, cols, sqn, sqd, N, D)
    grad = load_rows(DOUT + b * sgb + h * sgh, rows, cols, sgn, sgd, N, D)
    state, z, shared = _shared_value(SUMS + head * (BD + 1) * BD, BD)
    mass = tl.load(MASS + head)
    d_shared = tl.sum(grad * shared[None, :], 1)
    d_far = product(grad, transposed(state, kind), kind)
    d_far_z, d_last = tl.sum(q * z[None, :], 1), tl.sum(q * d_far, 1)
    agreement = far * d_last  # of the sum over values with its gradient
    dq, dq_norm = d_far * (far * mass)[:, None], z[None, :] * (far * mass)[:, None]
    d_weight, d_weight_norm = tl.zeros((T * T, BR), tl.float32), tl.zeros((T * T, BR), tl.float32)
    d_column, d_column_norm = tl.zeros((T * T, BX), tl.float32), tl.zeros((T * T, BX), tl.float32)
    for y in range(tl.maximum(top - REACH, 0), tl.minimum(top + T + REACH, height)):
        start, dy = (y * width).to(tl.int64), tl.abs(qy - y)
        k = load_rows(K + b * skb + h * skh + start * skn, kx, cols, skn, skd, N, D)
        v = load_rows(V + b * svb + h * svh + start * svn, kx, cols, svn, svd, N, D)
        kernel = product(q, transposed(k, kind), kind)
        d_scores = product(grad, transposed(v, kind), kind) - d_shared[:, None]
        inner, here = dx <= dy[:, None], groups[None, :] == dy[:, None]
        of_row = _weight_at(WEIGHT, dy, swr, REACH) - far
        local = tl.where(inner, of_row[:, None], of_column)
        local = tl.fma(kernel, tl.zeros_like(kernel), local)  # in the layout of the products
        if HAS_MASK:
            real = real_tokens(MASK + b * N + start, kx, N, HAS_MASK)[None, :]
            local, kernel = tl.where(real, local, 0.0), tl.where(real, kernel, 0.0)
        dq_norm += product(local, k, kind)
        dq += product(d_scores * local, k, kind)
        d_scores *= kernel
        # A pair's ring is dy in the columns up to dy, and dx beyond.
        of_row = tl.sum(tl.where(inner, d_scores, 0.0), 1)
        d_weight += tl.where(here, of_row[:, None], 0.0)
        of_row = tl.sum(tl.where(inner, kernel, 0.0), 1)
        d_weight_norm += tl.where(here, of_row[:, None], 0.0)
        d_column = tl.where(inner, d_column, d_column + d_scores)
        d_column_norm = tl.where(inner, d_column_norm, d_column_norm + kernel)
    for r in tl.static_range(REACH + 1):
        here, ring = groups[None, :] == r, dx == r
        d_weight += tl.where(here, tl.sum(tl.where(ring, d_column, 0.0), 1)[:, None], 0.0)
        of_ring = tl.sum(tl.where(ring, d_column_norm, 0.0), 1)
        d_weight_norm += tl.where(here, of_ring[:, None], 0.0)
    near = _weight_at(WEIGHT[:, None], groups[None, :], swr, REACH) - far[:, None]
    d_weight = tl.where((groups <= REACH)[None, :], d_weight, 0.0)
    d_weight_norm = tl.where((groups <= REACH)[None, :], d_weight_norm, 0.0)
    agreement += tl.sum(d_weight * near, 1) / mass
    norm = tl.load(NORM + head * N + rows, mask=rows < N, other=1.0)
    d_norm = (eps / mass * d_shared - agreement) / norm
    dq = (dq + d_norm[:, None] * dq_norm) * (1 / norm / mass)[:, None]
    store_rows(DQ + b * sxb + h * sxh, dq, rows, cols, sxn, sxd, N, D)
    # The other kernels take the full values, including their common part.
    DNORM += head * 2 * N + rows  # and the inverse normalisers, after those of all queries
    tl.store(DNORM, d_norm - d_shared, mask=rows < N)
    tl.store(DNORM + N, 1 / norm, mask=rows < N)
    d_weight = (d_weight + d_norm[:, None] * d_weight_norm) * (1 / norm / mass)[:, None]
    of_last = (d_last + d_norm * d_far_z) / norm - tl.sum(d_weight, 1)
    d_weight += tl.where(groups[None, :] == REACH + 1, of_last[:, None], 0.0)
    size: tl.constexpr = REACH + 2
    store_rows(DWEIGHT + head * N * size, d_weight, rows, groups, size, 1, N, size)


@kernel
def _far_backward_kernel(
    Q, WEIGHT, MASS, DNORM, DOUT, DSUMS,
    sqb, sqh, sqn, sqd, swb, swh, swn, swr, sgb, sgh, sgn, sgd, H, N, CHUNK,
    D: tl.constexpr, REACH: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Compute gradients of the sums of linear attention over a chunk of queries."""
    head, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    b, h = head // H, head % H
    kind = Q.dtype.element_ty
    cols = tl.arange(0, BD)
    WEIGHT += b * swb + h * swh + (REACH + 1) * swr
    d_state, d_z = tl.zeros((BD, BD), tl.float32), tl.zeros((BD,), tl.float32)
    for start in range(split * CHUNK, tl.minimum((split + 1) * CHUNK, N), BN):
        rows = start + tl.arange(0, BN)
        q = load_rows(Q + b * sqb + h * sqh, rows, cols, sqn, sqd, N, D)
        far = tl.load(WEIGHT + rows.to(tl.int64) * swn, mask=rows < N, other=0.0).to(tl.float32)
        inverse_norm = tl.load(DNORM + head * 2 * N + N + rows, mask=rows < N, other=0.0)
        q *= (far * inverse_norm)[:, None]
        grad = load_rows(DOUT + b * sgb + h * sgh, rows, cols, sgn, sgd, N, D)
        d_norm = tl.load(DNORM + head * 2 * N + rows, mask=rows < N, other=0.0)
        d_state = add_product(d_state, tl.trans(q), grad, kind)
        d_z += tl.sum(q * d_norm[:, None], 0)
    # Divided by its root, which keeps the keys' factors in range whatever their signs.
    root = tl.sqrt(tl.load(MASS + head))
    DSUMS += (head * tl.num_programs(1) + split) * (BD + 1) * BD
    tl.store(DSUMS + cols[:, None] * BD + cols[None, :], d_state / root)
    tl.store(DSUMS + BD * BD + cols, d_z / root)


@kernel
def _key_backward_kernel(
    Q, K, V, WEIGHT, MASK, DNORM, DOUT, DSUMS, MASS, DK, DV,
    sqb, sqh, sqn, sqd, skb, skh, skn, skd, svb, svh, svn, svd, swb, swh, swn, swr,
    sxb, sxh, sxn, sxd, sgb, sgh, sgn, sgd, H, N, height, width,
    D: tl.constexpr, T: tl.constexpr, REACH: tl.constexpr, BX: tl.constexpr,
    BD: tl.constexpr, HAS_MASK: tl.constexpr,
):  # fmt: skip
    """Compute gradients of the keys and values of a tile."""
    head, top, left, ky, kx, rows = _tile_tokens(T, height, width)
    b, h = head // H, head % H
    kind = Q.dtype.element_ty
    cols = tl.arange(0, BD)
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
    qx = _halo_columns(left, T, REACH, BX, width, N)
    column = tl.minimum(qx, width - 1)
    weights = column[None, :] * swn
    dx = tl.minimum(tl.abs(kx[:, None] - qx[None, :]), REACH + 1) * swr
    WEIGHT += b * swb + h * swh
    for y in range(tl.maximum(top - REACH, 0), tl.minimum(top + T + REACH, height)):
        start = (y * width).to(tl.int64)
        q = load_rows(Q + b * sqb + h * sqh + start * sqn, qx, cols, sqn, sqd, N, D)
        grad = load_rows(DOUT + b * sgb + h * sgh + start * sgn, qx, cols, sgn, sgd, N, D)
        at = DNORM + head * 2 * N + start + column
        d_norm, inverse_norm = tl.load(at), tl.load(at + N)
        dy = tl.minimum(tl.abs(ky - y), REACH + 1)[:, None] * swr
        local = tl.load(WEIGHT + start * swn + (weights + tl.maximum(dx, dy))).to(tl.float32)
        local -= tl.load(WEIGHT + start * swn + (weights + (REACH + 1) * swr)).to(tl.float32)
        if kind == tl.float16:
            q *= inverse_norm[:, None]
        else:
            local *= inverse_norm[None, :]
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


def _state(options: KernelOptions, shapes: Sequence[Any]) -> Memory:
    """Return the layout of S and z of the keys, normalisers of queries, and number of keys."""
    batch, heads, num_tokens, dim = shapes[0]
    size = padded(dim)
    return Memory((batch, heads, size + 1, size), (batch, heads, num_tokens), (batch, heads))


class _Launches:
    """Sizes that the launches of both passes share."""

    def __init__(self, key: CallKey) -> None:
        q, num_groups, options = key.tokens(0), key.shapes[3][-1], key.options
        self.key, self.q, self.heads, self.bd = key, q, (q.batch, q.heads), padded(q.dim)
        self.num_tiles = -(-options.height // TILE) * -(-options.width // TILE)
        self.sizes = (q.heads, q.num_tokens, options.height, options.width)
        self.state = _state(options, key.shapes)
        reach = num_groups - 2  # of the halo: the last distance with its own weight
        self.constants = dict(
            D=q.dim, BD=self.bd, T=TILE, REACH=reach, HAS_MASK=key.shapes[4] is not None,
            BX=max(16, triton.next_power_of_2(TILE + 2 * reach)),  # a product takes 16 at least
        )  # fmt: skip

    def over_tiles(
        self, name: str, kernel: Any, strides: Sequence[int], *sizes: float, **constants: int
    ) -> Launch:
        """Return a launch of one program per tile."""
        config, q = self.q.config(name), self.q
        grid, arguments = (q.batch * q.heads * self.num_tiles,), (*strides, *self.sizes, *sizes)
        return Launch(
            kernel, grid, arguments, {**self.constants, **constants}, config, self.key.aligned
        )


class _Forward(_Launches):
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

    def __call__(self, *tensors: Any) -> List[Tensor]:
        """Return the output and the state, see :func:`_state`.

        The tensors are q, k, v (B, heads, N, d), weights (B, heads, N, R + 1), mask (B, N) or None.
        """
        q, k, v, weights, mask = tensors
        padding = as_bytes(mask, q)
        state, sums, norm, mass = self.state.allocate(q, self.ripple)
        _memory, *scratch = self.scratch.allocate(q, self.ripple)
        self.kv_state(k, v, padding, q, q, sums, mass, scratch)
        out = token_major(q)
        self.ripple(q, k, v, weights, padding, sums, mass, out, norm)
        return [out, state]


class _Backward(_Launches):
    def __init__(self, key: CallKey) -> None:
        super().__init__(key)
        q, (_, k, v, weights, _, grad), out = self.q, key.strides, token_strides(self.q)
        strides = (*q.strides, *k, *v, *weights, *out, *grad)
        self.queries = self.over_tiles(
            'ripple_query_backward', _query_backward_kernel, strides, key.options.eps,
            BR=triton.next_power_of_2(self.constants['REACH'] + 2),
        )  # fmt: skip
        self.keys = self.over_tiles('ripple_key_backward', _key_backward_kernel, strides)
        self.far = key.over_tokens(
            'ripple_far_backward', _far_backward_kernel, q, (*q.strides, *weights, *grad),
            REACH=self.constants['REACH'],
        )  # fmt: skip
        splits, size = self.far.splits, (self.bd + 1, self.bd)
        self.add_sums = None
        if splits > 1:
            self.add_sums = sum_of_chunks(key, q.batch * q.heads, splits, *size)
        shapes = (2 * q.num_tokens,), (splits, *size), *[size] * (splits > 1)
        self.scratch = Memory(*[(*self.heads, *shape) for shape in shapes])

    def __call__(self, *tensors: Any) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the gradients of q, k, v and the weights."""
        q, k, v, weights, mask, state, grad = tensors
        sums, norm, mass = self.state.parts(state, self.keys)
        _memory, d_norm, d_sums, *total = self.scratch.allocate(q, self.keys)
        padding, d_weights = as_bytes(mask, q), weights.new_empty(weights.shape)
        dq, dk, dv = token_major(q), token_major(k), token_major(v)
        self.queries(q, k, v, weights, padding, sums, mass, norm, grad, dq, d_weights, d_norm)
        self.far(q, weights, mass, d_norm, grad, d_sums)
        if self.add_sums is not None:
            self.add_sums(d_sums, d_sums, d_sums, *total * 3)
            (d_sums,) = total
        self.keys(q, k, v, weights, padding, d_norm, grad, d_sums, mass, dk, dv)
        return dq, dk, dv, d_weights


OPERATOR = KernelOperator(
    __name__, _Forward, _Backward, _state, KernelOptions, num_sizes=2, num_gradients=4
)
