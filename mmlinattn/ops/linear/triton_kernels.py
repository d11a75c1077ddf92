"""Kernels of linear attention, RALA and MALA.

With the sums S and z of :mod:`..common.kv_state` the output is
``rot(phi(q_i)) S / (phi(q_i) . z + eps)``; MALA's, whose state has the mean value
as a second extra row, is ``gain_i rot(phi(q_i)) S - z_i mean(v)``. Normalised sums keep float16 in
range. Gradients of sums are divided by the square root of the number of tokens, which keeps them in
range for any signs. Each program processes a chunk of tokens of one head. RALA and MALA have their
own rows in :mod:`..common.launch_table` because they need more registers. Launches, by row of the
table:

- forward: RALA's ``query_mean``; ``kv_state`` (:mod:`..common.kv_state`), whose chunks
  :mod:`..common.reduction` averages; ``query_output``.
- backward: ``query_backward``, the gradients of the state and, except in RALA, of the queries
  (``rala_query_sums``), whose chunks are summed; ``key_backward``, of keys, values and RALA's mean
  query; ``rala_query_backward``, of RALA's queries.
"""

from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import triton
import triton.language as tl
from torch import Tensor

from ..common.feature_maps import KERNEL_FEATURES
from ..common.kv_state import KVStateLaunches
from ..common.launch import CallKey, KernelOperator, Launch, Memory, as_bytes, padded, token_strides
from ..common.numerics import token_major
from ..common.reduction import sum_of_chunks
from ..common.triton_helpers import (
    ELU1,
    add_product,
    add_row_pairs,
    add_rows,
    exp,
    feature,
    kernel,
    load_angles,
    load_rows,
    packed_image,
    product,
    real_tokens,
    rotate,
    rounded,
    scale_by_slope,
    store_rows,
    sum_parts,
    zero_outside,
)


@kernel
def _query_mean_kernel(
    Q, MASK, IMAGES, QUERY_SUMS, QUERY_COUNTS, sqb, sqh, sqn, sqd, H, N, width, CHUNK,
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
    total, count = tl.zeros((16, BD), tl.float32), tl.zeros((BN,), tl.float32)
    for start in range(split * CHUNK, tl.minimum((split + 1) * CHUNK, N), BN):
        rows = start + tl.arange(0, BN)
        real = real_tokens(MASK + b * N, rows, N, HAS_MASK)
        x = load_rows(Q + b * sqb + h * sqh, rows, cols, sqn, sqd, N, D)
        x = zero_outside(feature(x, FEATURE), real, cols, D, FEATURE, HAS_MASK or FEATURE == ELU1)
        total = add_rows(total, x)
        count += tl.where(real, 1.0, 0.0)
    at = head * tl.num_programs(1) + split
    tl.store(QUERY_SUMS + at * BD + cols, tl.sum(total, 0))
    tl.store(QUERY_COUNTS + at, tl.sum(count, 0))


@triton.jit
def _eps(eps, MASS, head, OF_MEAN: tl.constexpr):
    """Scale eps to the normalised sums, unless it belongs to a mean, as always in RALA."""
    if not OF_MEAN:
        eps = eps / tl.load(MASS + head)
    return eps


@kernel
def _query_output_kernel(
    Q, IMAGES, ANGLES, SUMS, MASS, OUT,
    sqb, sqh, sqn, sqd, sob, soh, son, sod, H, N, width, CHUNK, eps, scale,
    D: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, FEATURE: tl.constexpr,
    OF_MEAN: tl.constexpr, ROTARY: tl.constexpr, EXTRA_ROWS: tl.constexpr,
    PACKED: tl.constexpr,
):  # fmt: skip
    """Compute the output of a chunk of queries from S, z and, for MALA, the mean value."""
    head, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    b, h = head // H, head % H
    if PACKED:
        b, first, N, width, ANGLES = packed_image(IMAGES, b, ANGLES)
        Q += first * sqn
        OUT += first * son
    cols, pairs = tl.arange(0, BD), tl.arange(0, BD // 2)
    kind = Q.dtype.element_ty
    SUMS += head * (BD + EXTRA_ROWS) * BD
    state = tl.load(SUMS + cols[:, None] * BD + cols[None, :])
    z = tl.load(SUMS + BD * BD + cols)
    eps = _eps(eps, MASS, head, OF_MEAN)
    if EXTRA_ROWS == 2:
        values = tl.load(SUMS + (BD + 1) * BD + cols)
    for start in range(split * CHUNK, tl.minimum((split + 1) * CHUNK, N), BN):
        rows = start + tl.arange(0, BN)
        q = feature(load_rows(Q + b * sqb + h * sqh, rows, cols, sqn, sqd, N, D), FEATURE)
        norm = tl.sum(q * z[None, :], 1)  # z and S are 0 outside the channels
        if ROTARY:
            cos, sin = load_angles(ANGLES, rows, pairs, N, width, ROTARY)
            q = rotate(q, cos, sin, BN, BD)
        out = product(q, state, kind)
        if EXTRA_ROWS == 2:
            z_i = scale * norm
            out = out * (scale + scale / (z_i + eps))[:, None] - z_i[:, None] * values[None, :]
        else:
            out = out * (1 / (norm + eps))[:, None]
        store_rows(OUT + b * sob + h * soh, out, rows, cols, son, sod, N, D)


@kernel
def _query_backward_kernel(
    Q, DOUT, MASK, IMAGES, ANGLES, SUMS, MASS, DMEAN, DQ, DSUMS,
    sqb, sqh, sqn, sqd, sgb, sgh, sgn, sgd, sxb, sxh, sxn, sxd, H, N, width, CHUNK, parts,
    eps, scale, root,
    D: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, FEATURE: tl.constexpr,
    HAS_MASK: tl.constexpr, ROTARY: tl.constexpr, SCORED: tl.constexpr, OF_MEAN: tl.constexpr,
    SUM: tl.constexpr, WRITE: tl.constexpr, EXTRA_ROWS: tl.constexpr, PACKED: tl.constexpr,
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
    SUMS += head * (BD + EXTRA_ROWS) * BD
    state = tl.load(SUMS + cols[:, None] * BD + cols[None, :])
    z = tl.load(SUMS + BD * BD + cols)
    eps = _eps(eps, MASS, head, OF_MEAN)
    if EXTRA_ROWS == 2:
        values, d_values = tl.load(SUMS + (BD + 1) * BD + cols), tl.zeros((BN // 2, BD), tl.float32)
    elif not ROTARY:
        # Gradients of queries depend on differences of values: subtract the common part, which
        # would cost most digits.
        shared = tl.sum(state * z[:, None], 0) / tl.maximum(tl.sum(z * z), 1e-30)
        state -= z[:, None] * shared[None, :]
    if SUM:
        d_state, d_z = tl.zeros((BD, BD), tl.float32), tl.zeros((BN // 2, BD), tl.float32)
    if WRITE and SCORED:
        d_mean = sum_parts(DMEAN + head * parts * BD, parts, cols, BD)
    for start in range(split * CHUNK, tl.minimum((split + 1) * CHUNK, N), BN):
        rows = start + tl.arange(0, BN)
        q = feature(load_rows(Q + b * sqb + h * sqh, rows, cols, sqn, sqd, N, D), FEATURE)
        # Gradients of tokens outside are 0, and so is what they add to sums.
        grad = load_rows(DOUT + b * sgb + h * sgh, rows, cols, sgn, sgd, N, D)
        if SUM and FEATURE == ELU1 and D < BD:
            q = tl.where(cols[None, :] < D, q, 0.0)
        # Triton gives all products of a loop the layout of the last one. With fewer than 64 tokens
        # that must be dq, because every warp would compute all rows in the layout of the sums.
        if not SUM or BN >= 64:
            dq = product(grad, tl.trans(state), kind)
            if SUM:  # 0 outside in both; without the choice Triton computes q in two layouts
                q = tl.where(rows[:, None] < N, q, dq)
        norm = tl.sum(q * z[None, :], 1)
        z_i = scale * norm
        gain = scale + scale / (z_i + eps) if EXTRA_ROWS == 2 else 1 / (norm + eps)
        turned = q
        if ROTARY:
            cos, sin = load_angles(ANGLES, rows, pairs, N, width, ROTARY)
            if SUM:
                turned = rotate(q, cos, sin, BN, BD)
        if SUM:
            # The transpose: gradients pass from memory to the tensor cores as they are.
            d_state = add_product(
                d_state, tl.trans(rounded(grad, kind)), turned * gain[:, None], kind
            )
            if BN < 64:
                dq = product(grad, tl.trans(state), kind)
        if ROTARY and WRITE:
            dq = rotate(dq, cos, -sin, BN, BD)
        # The gradient by the output times the output, before it is divided by the norm. The norm
        # may be as small as eps, and q is then as small: no rounded q is divided by it.
        inner = tl.sum((q if WRITE else turned) * dq, 1)
        if EXTRA_ROWS == 2:
            over = scale / (z_i + eps)
            d_norm = -inner * over * over - scale * tl.sum(grad * values[None, :], 1)
            d_values = add_row_pairs(d_values, -z_i[:, None] * grad)
            of_z = d_norm
        else:
            d_norm = -inner * gain
            if not ROTARY:
                common = tl.sum(grad * shared[None, :], 1)
                of_z = (d_norm - norm * gain * common) * gain
                d_norm += eps * gain * common
            else:
                of_z = d_norm * gain
        if SUM:
            d_z = add_row_pairs(d_z, q * of_z[:, None])
        if WRITE:
            if EXTRA_ROWS == 2:
                dq = dq * gain[:, None] + d_norm[:, None] * z[None, :]
            else:
                dq = (dq + d_norm[:, None] * z[None, :]) * gain[:, None]
            if SCORED:
                if HAS_MASK:
                    real = real_tokens(MASK + b * N, rows, N, HAS_MASK)
                    dq += tl.where(real[:, None], d_mean[None, :], 0.0)
                else:
                    dq += d_mean[None, :]
            dq = scale_by_slope(dq, q, FEATURE)
            store_rows(DQ + b * sxb + h * sxh, dq, rows, cols, sxn, sxd, N, D)
    if SUM:
        d_state, d_z = tl.trans(d_state), tl.sum(d_z, 0)
        at = head * tl.num_programs(1) + split
        DSUMS += at * (BD + EXTRA_ROWS) * BD
        tl.store(DSUMS + cols[:, None] * BD + cols[None, :], d_state / root)
        tl.store(DSUMS + BD * BD + cols, d_z / root)
        if EXTRA_ROWS == 2:
            tl.store(DSUMS + (BD + 1) * BD + cols, tl.sum(d_values, 0) / root)


@kernel
def _key_backward_kernel(
    K, V, MASK, IMAGES, ANGLES, QUERY_MEAN, QUERY_COUNT, MASS, SUMS, DSUMS, DK, DV, DMEAN,
    skb, skh, skn, skd, svb, svh, svn, svd, sxb, sxh, sxn, sxd, H, N, width, CHUNK, scale, root,
    D: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, FEATURE: tl.constexpr,
    HAS_MASK: tl.constexpr, SCORED: tl.constexpr, ROTARY: tl.constexpr, EXTRA_ROWS: tl.constexpr,
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
    SUMS += head * (BD + EXTRA_ROWS) * BD
    DSUMS += head * (BD + EXTRA_ROWS) * BD
    square = cols[:, None] * BD + cols[None, :]
    d_state = tl.load(DSUMS + square)
    d_z = tl.load(DSUMS + BD * BD + cols)
    mass = tl.load(MASS + head)
    if EXTRA_ROWS == 2:
        d_values = tl.load(DSUMS + (BD + 1) * BD + cols)
    if SCORED:
        mean = tl.load(QUERY_MEAN + head * BD + cols) * scale
        # sum_j w_j dw_j of the softmax gradient, in closed form.
        delta = tl.sum(tl.sum(d_state * tl.load(SUMS + square), 1), 0)
        delta += tl.sum(d_z * tl.load(SUMS + BD * BD + cols), 0)
        d_mean = tl.zeros((BN // 2, BD), tl.float32)
    for start in range(split * CHUNK, tl.minimum((split + 1) * CHUNK, N), BN):
        rows = start + tl.arange(0, BN)
        real = real_tokens(MASK + b * N, rows, N, HAS_MASK)
        k = feature(load_rows(K + b * skb + h * skh, rows, cols, skn, skd, N, D), FEATURE)
        v = load_rows(V + b * svb + h * svh, rows, cols, svn, svd, N, D)
        if SCORED:
            weight = exp(tl.minimum(tl.sum(k * mean[None, :], 1) - mass, 0.0)) * root
        else:
            weight = tl.zeros((BN,), tl.float32) + root / mass
        weight = tl.where(real, weight, 0.0)
        turned = k
        if ROTARY:
            cos, sin = load_angles(ANGLES, rows, pairs, N, width, ROTARY)
            turned = rotate(k, cos, sin, BN, BD)
        dv = product(turned, d_state, kind)
        if EXTRA_ROWS == 2:
            dv += d_values[None, :]
        dv *= weight[:, None]
        dk = product(v, tl.trans(d_state), kind)
        if ROTARY:
            dk = rotate(dk, cos, -sin, BN, BD)
        dk += d_z[None, :]
        if SCORED:
            d_score = weight * (tl.sum(k * dk, 1) - delta)
            dk = dk * weight[:, None] + d_score[:, None] * mean[None, :]
            of_mean = d_score[:, None] * k
            if HAS_MASK:
                of_mean = tl.where(real[:, None], of_mean, 0.0)
            d_mean = add_row_pairs(d_mean, of_mean)
        else:
            dk *= weight[:, None]
        dk = scale_by_slope(dk, k, FEATURE)
        if HAS_MASK:  # padding may hold infinite numbers
            dk, dv = tl.where(real[:, None], dk, 0.0), tl.where(real[:, None], dv, 0.0)
        store_rows(DK + b * sxb + h * sxh, dk, rows, cols, sxn, sxd, N, D)
        store_rows(DV + b * sxb + h * sxh, dv, rows, cols, sxn, sxd, N, D)
    if SCORED:
        d_mean = tl.sum(d_mean, 0) * scale / tl.load(QUERY_COUNT + head)
        tl.store(DMEAN + (head * tl.num_programs(1) + split) * BD + cols, d_mean)


class KernelOptions(NamedTuple):
    """Options of the kernels."""

    width: int  # of the map, which rotary position needs, else 0
    longest: int  # the most tokens of a packed image, else 0
    kind: str  # '' for linear attention, 'rala' or 'mala'
    feature_map: str
    eps: float  # added to the normaliser
    mean_normaliser: bool  # eps belongs to a mean over the keys
    cross: bool  # keys and mask are of other tokens than the queries


def _state(options: KernelOptions, shapes: Sequence[Any]) -> Memory:
    """Return the layout of S, z (MALA: mean(v)), mean and number of queries (RALA), and mass."""
    (batch, heads, _, dim), images = shapes[0], shapes[4]
    lead, size = (batch if images is None else images[0], heads), padded(dim)
    sums = (*lead, size + (2 if options.kind == 'mala' else 1), size)
    return Memory(sums, *[(*lead, size), lead] * (options.kind == 'rala'), lead)


class _Launches:
    """Sizes and constants that the launches of both passes share."""

    def __init__(self, key: CallKey) -> None:
        options, images = key.options, key.shapes[4]
        q, k = key.tokens(0), key.tokens(1)
        if images is not None:  # a batch of images, each as long as the longest
            q, k = (x._replace(batch=images[0], num_tokens=options.longest) for x in (q, k))
        self.q, self.k, self.heads, self.scale = q, k, (k.batch, k.heads), k.dim**-0.5
        self.scored = options.kind == 'rala'
        self.state = _state(options, key.shapes)
        extra_rows = 2 if options.kind == 'mala' else 1  # z, and the mean value in MALA
        self.bd, self.rows = padded(k.dim), padded(k.dim) + extra_rows
        self.prefix = f'{options.kind}_' if options.kind else ''  # of rows of the launch table
        self.has_mask = key.shapes[3] is not None
        self.has_query_mask = self.has_mask and not options.cross
        self.constants: Dict[str, Any] = dict(
            FEATURE=KERNEL_FEATURES[options.feature_map], EXTRA_ROWS=extra_rows,
            PACKED=images is not None, ROTARY=0 if key.shapes[5] is None else k.dim // 4,
        )  # fmt: skip


class _Forward(_Launches):
    def __init__(self, key: CallKey) -> None:
        super().__init__(key)
        q, options, constants = self.q, key.options, self.constants
        self.output = key.over_tokens(
            f'{self.prefix}query_output', _query_output_kernel, q, (*q.strides, *token_strides(q)),
            options.width, after=(options.eps, self.scale), **constants,
            OF_MEAN=options.mean_normaliser,
        )  # fmt: skip
        splits, queries = 0, []
        if self.scored:
            self.query_mean = key.over_tokens(
                'query_mean', _query_mean_kernel, q, q.strides, options.width,
                FEATURE=constants['FEATURE'], HAS_MASK=self.has_query_mask,
                PACKED=constants['PACKED'],
            )  # fmt: skip
            splits = self.query_mean.splits
            queries = [(*self.heads, splits, self.bd), (*self.heads, splits)]
        self.kv_state = KVStateLaunches(
            key, f'{self.prefix}kv_state', self.k, options.width, splits, **constants,
            HAS_MASK=self.has_mask, SCORED=self.scored,
        )  # fmt: skip
        self.scratch = Memory(*queries, *self.kv_state.scratch)

    def __call__(self, *tensors: Any) -> List[Tensor]:
        """Return the output and the state, see :func:`_state`.

        The tensors are q, k, v (B, heads, N, d), padding mask (B, N) or None,
        :meth:`.PackedShapes.table` of packed images or None, :meth:`.Rotary.axes` or None.
        """
        q, k, v, mask, images, axes = tensors
        padding = as_bytes(mask, q)
        images, axes = q if images is None else images, q if axes is None else axes
        state, sums, *queries, mass = self.state.allocate(q, self.output)
        _memory, *scratch = self.scratch.allocate(q, self.output)
        if self.scored:
            query_sums, query_counts, *scratch = scratch
            self.query_mean(q, padding, images, query_sums, query_counts)
            queries = [query_sums, query_counts, *queries]
        self.kv_state(k, v, padding, images, axes, sums, mass, scratch, queries)
        out = token_major(q)
        self.output(q, images, axes, sums, mass, out)
        return [out, state]


class _Backward(_Launches):
    def __init__(self, key: CallKey) -> None:
        super().__init__(key)
        q, k, options = self.q, self.k, key.options
        # Gradients of sums are divided by it, which keeps them in range for any signs.
        root = k.num_tokens**0.5
        self.keys = key.over_tokens(
            f'{self.prefix}key_backward', _key_backward_kernel, k,
            (*k.strides, *key.strides[2], *token_strides(k)), options.width,
            after=(self.scale, root), **self.constants, HAS_MASK=self.has_mask, SCORED=self.scored,
        )  # fmt: skip

        def over_queries(name: str, adds: bool, writes: bool) -> Launch:
            return key.over_tokens(
                name, _query_backward_kernel, q, (*q.strides, *key.strides[6], *token_strides(q)),
                options.width, after=(self.keys.splits, options.eps, self.scale, root),
                **self.constants, HAS_MASK=self.has_query_mask, SCORED=self.scored,
                OF_MEAN=options.mean_normaliser, SUM=adds, WRITE=writes,
            )  # fmt: skip

        name = 'rala_query_sums' if self.scored else f'{self.prefix}query_backward'
        self.query_sums = over_queries(name, True, not self.scored)
        splits, size = self.query_sums.splits, (self.rows, self.bd)
        scratch: List[Tuple[int, ...]] = [(*self.heads, splits, *size)]
        self.last, self.add_sums = self.keys, None
        if self.scored:
            self.last = over_queries('rala_query_backward', False, True)
            scratch.append((*self.heads, self.keys.splits, self.bd))
        if splits > 1:
            self.add_sums = sum_of_chunks(key, q.batch * q.heads, splits, *size)
            scratch.append((*self.heads, *size))
        self.scratch = Memory(*scratch)

    def __call__(self, *tensors: Any) -> Tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of q, k and v."""
        q, k, v, mask, images, axes, state, grad = tensors
        sums, *scores, mass = self.state.parts(state, self.last)
        padding = as_bytes(mask, q)
        images, axes = q if images is None else images, q if axes is None else axes
        dq, dk, dv = token_major(q), token_major(k), token_major(v)
        _memory, parts, *rest = self.scratch.allocate(q, self.last)
        self.query_sums(q, grad, padding, images, axes, sums, mass, q, dq, parts)
        d_sums = parts
        if self.add_sums is not None:
            d_sums = rest.pop()
            self.add_sums(parts, parts, parts, d_sums, d_sums, d_sums)
        mean, count, d_mean = (*scores, *rest) if self.scored else (k, k, d_sums)
        self.keys(k, v, padding, images, axes, mean, count, mass, sums, d_sums, dk, dv, d_mean)
        if self.scored:
            self.last(q, grad, padding, images, axes, sums, mass, d_mean, dq, d_sums)
        return dq, dk, dv


OPERATOR = KernelOperator(__name__, _Forward, _Backward, _state, KernelOptions, num_sizes=2)
