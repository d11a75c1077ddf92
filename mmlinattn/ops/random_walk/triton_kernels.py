"""Kernels of attention through anchors, without an N x M matrix in memory.

``G_Q = softmax_anchors(q B_K^T)`` and ``G_K = softmax_tokens(B_Q k^T)`` exist block by block:

1. the first pass sums ``S = G_K v`` and ``W = G_K G_Q`` over the tokens (token softmax online);
2. one program per head solves the walk between the anchors, M x M in float32, into X;
3. the second pass computes ``G_Q X``.

The backward pass sums the gradient of X, differentiates the solver, and writes all gradients of the
tokens in one pass. It recomputes both softmaxes. Sums over tokens are written once per chunk.
"""

from typing import Any, List, Sequence, Tuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..common.launch import CallKey, KernelOperator, Launch, Memory, as_bytes, padded, token_strides
from ..common.numerics import token_major
from ..common.reduction import SOFTMAX, sum_of_chunks
from ..common.triton_helpers import (
    LOWEST,
    add_product,
    exp,
    kernel,
    load_rows,
    product,
    product_across,
    real_tokens,
    rounded,
    store_rows,
    transposed,
)
from .anchor_solver import Walk, normaliser, series_factors

# Up to so many chunks the solver adds them itself, which saves a launch.
FEW_CHUNKS = 8


@triton.jit
def _anchor_softmax(q, anchors, M: tl.constexpr, kind: tl.constexpr, BM: tl.constexpr):
    """Compute the softmax over the anchors, (BN, BM), for q (BN, BD) and anchors (BM, BD)."""
    logits = product(q, transposed(anchors, kind), kind)
    logits = tl.where(tl.arange(0, BM)[None, :] < M, logits, LOWEST)
    weights = exp(logits - tl.max(logits, 1)[:, None])
    return weights * (1 / tl.sum(weights, 1))[:, None]


@kernel
def _state_kernel(
    Q, K, V, AQ, AK, MASK, SUMS, TOP, MASS,
    sqb, sqh, sqn, sqd, skb, skh, skn, skd, svb, svh, svn, svd, saq, sak,
    H, N, CHUNK,
    D: tl.constexpr, M: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr,
    HAS_MASK: tl.constexpr, HAS_TRANSITION: tl.constexpr,
):  # fmt: skip
    """Sum one chunk: S and W in (BM, BD + BM), largest logit and mass of each anchor."""
    head, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    b, h = head // H, head % H
    kind = Q.dtype.element_ty
    cols, places = tl.arange(0, BD), tl.arange(0, BM)
    anchors_q = load_rows(AQ + b * saq + h * M * D, places, cols, D, 1, M, D)
    anchors_k = load_rows(AK + b * sak + h * M * D, places, cols, D, 1, M, D)
    state = tl.zeros((BM, BD), tl.float32)
    walk = tl.zeros((BM, BM), tl.float32)
    top, mass = tl.full((BM,), LOWEST, tl.float32), tl.zeros((BM,), tl.float32)
    for start in range(split * CHUNK, tl.minimum((split + 1) * CHUNK, N), BN):
        rows = start + tl.arange(0, BN)
        real = real_tokens(MASK + b * N, rows, N, HAS_MASK)
        k = load_rows(K + b * skb + h * skh, rows, cols, skn, skd, N, D)
        v = load_rows(V + b * svb + h * svh, rows, cols, svn, svd, N, D)
        logits = tl.where(real[None, :], product(anchors_q, transposed(k, kind), kind), LOWEST)
        new_top = tl.maximum(top, tl.max(logits, 1))
        weights = tl.where(real[None, :], exp(logits - new_top[:, None]), 0.0)  # [BM, BN]
        fade = exp(top - new_top)
        top = new_top
        mass = mass * fade + tl.sum(weights, 1)
        state = add_product(state * fade[:, None], weights, v, kind)
        if HAS_TRANSITION:
            q = load_rows(Q + b * sqb + h * sqh, rows, cols, sqn, sqd, N, D)
            weights_q = _anchor_softmax(q, anchors_k, M, kind, BM)
            walk = add_product(walk * fade[:, None], weights, weights_q, kind)
    if tl.num_programs(1) == 1:  # no other chunk to average with
        inverse = 1 / tl.where(mass > 0, mass, 1.0)[:, None]
        state, walk = state * inverse, walk * inverse
        mass = top + tl.log(tl.maximum(mass, 1e-30))
    at = head * tl.num_programs(1) + split
    size: tl.constexpr = BD + BM if HAS_TRANSITION else BD
    SUMS += at * BM * size + places[:, None] * size
    tl.store(SUMS + cols[None, :], state)
    if HAS_TRANSITION:
        tl.store(SUMS + BD + places[None, :], walk)
    tl.store(TOP + at * BM + places, top)
    tl.store(MASS + at * BM + places, mass)


@kernel
def _solver_kernel(
    PARTS, TOP, MASS, SUMS, LSE, X, decay, scale, steps, factors, splits,
    BD: tl.constexpr, BM: tl.constexpr, ENDLESS: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """Apply all steps after the first one and the normaliser, in float32.

    With ADD, first average the chunks of S and W by their masses.
    """
    head = tl.program_id(0).to(tl.int64)
    cols, places = tl.arange(0, BD), tl.arange(0, BM)
    size: tl.constexpr = BM * (BD + BM)
    at = places[:, None] * (BD + BM)
    if ADD:
        state, walk = tl.zeros((BM, BD), tl.float32), tl.zeros((BM, BM), tl.float32)
        top, mass = tl.full((BM,), LOWEST, tl.float32), tl.zeros((BM,), tl.float32)
        for chunk in range(head * splits, (head + 1) * splits):
            tops = tl.load(TOP + chunk * BM + places)
            new_top = tl.maximum(top, tops)
            fade, weight = exp(top - new_top), exp(tops - new_top)
            top = new_top
            mass = mass * fade + tl.load(MASS + chunk * BM + places) * weight
            part = PARTS + chunk * size + at
            state = state * fade[:, None] + tl.load(part + cols[None, :]) * weight[:, None]
            walk = walk * fade[:, None] + tl.load(part + BD + places[None, :]) * weight[:, None]
        inverse = 1 / tl.where(mass > 0, mass, 1.0)[:, None]
        state, walk = state * inverse, walk * inverse
        tl.store(SUMS + head * size + at + cols[None, :], state)
        tl.store(SUMS + head * size + at + BD + places[None, :], walk)
        tl.store(LSE + head * BM + places, top + tl.log(tl.maximum(mass, 1e-30)))
    else:
        state = tl.load(SUMS + head * size + at + cols[None, :])
        walk = tl.load(SUMS + head * size + at + BD + places[None, :])
    x = _solve_walk(state, walk * decay, scale, steps, factors, ENDLESS)
    tl.store(X + head * BM * BD + places[:, None] * BD + cols[None, :], x)


@triton.jit
def _solve_walk(state, walk, scale, steps, factors, ENDLESS: tl.constexpr):
    """Compute scale (I - walk)^-1 state, or ``scale`` times the sum of the first steps."""
    state *= scale
    if ENDLESS:
        # (I - W)^-1 = (I + W)(I + W^2)(I + W^4)...: the rows of W sum to the decay, so the
        # error after n factors is decay^(2^n).
        total = state + product(walk, state, tl.float32)
        for _ in range(1, factors):
            walk = product(walk, walk, tl.float32)
            total += product(walk, total, tl.float32)
    else:
        total = state
        for _ in range(1, steps):
            total = state + product(walk, total, tl.float32)
    return total


@kernel
def _solver_backward_kernel(
    SUMS, X, DX, DS, DW, DELTA, decay, scale, steps, factors, splits,
    BD: tl.constexpr, BM: tl.constexpr, HAS_TRANSITION: tl.constexpr, ENDLESS: tl.constexpr,
    ADD: tl.constexpr,
):  # fmt: skip
    """Add the gradients of X of all chunks; compute those of S and W, and delta (BM,).

    The gradients are factors of products, so they are stored as rounded as products round them.
    delta is the sum that the gradient of the token softmax subtracts.
    """
    head = tl.program_id(0).to(tl.int64)
    kind = DS.dtype.element_ty
    cols, places = tl.arange(0, BD), tl.arange(0, BM)
    size: tl.constexpr = BD + BM if HAS_TRANSITION else BD
    SUMS += head * BM * size + places[:, None] * size
    wide = head * BM * BD + places[:, None] * BD + cols[None, :]
    if ADD:
        grad = tl.zeros((BM, BD), tl.float32)
        for chunk in range(head * splits, (head + 1) * splits):
            grad += tl.load(DX + chunk * BM * BD + places[:, None] * BD + cols[None, :])
    else:
        grad = tl.load(DX + wide)
    if HAS_TRANSITION:
        back = tl.trans(tl.load(SUMS + BD + places[None, :])) * decay
        d_state = _solve_walk(grad, back, scale, steps, factors, ENDLESS)
        if ENDLESS:
            # X = (1 - l) (I - l W)^-1 S: its differential has no more inverses.
            x = tl.load(X + wide)
            d_walk = product(d_state, tl.trans(x), tl.float32) * (decay / scale)
        else:
            # sum_{a + b <= steps - 2} (l W^T)^a grad S^T (l W^T)^b
            state = tl.load(SUMS + cols[None, :])
            last = product(grad * scale, tl.trans(state), tl.float32)
            row, d_walk = last, last
            for _ in range(2, steps):
                row = last + product(row, back, tl.float32)
                d_walk = row + product(back, d_walk, tl.float32)
            d_walk *= decay
        tl.store(
            DW + head * BM * BM + places[:, None] * BM + places[None, :], rounded(d_walk, kind)
        )
        delta = tl.sum(d_walk * tl.load(SUMS + BD + places[None, :]), 1)
    else:
        d_state = grad
        delta = tl.zeros((BM,), tl.float32)
    delta += tl.sum(d_state * tl.load(SUMS + cols[None, :]), 1)
    tl.store(DS + wide, rounded(d_state, kind))
    tl.store(DELTA + head * BM + places, delta)


@kernel
def _output_kernel(
    Q, AK, X, OUT, sqb, sqh, sqn, sqd, sob, soh, son, sod, sak, H, N, CHUNK,
    D: tl.constexpr, M: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """Compute ``G_Q X`` for a chunk of queries."""
    head, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    b, h = head // H, head % H
    kind = Q.dtype.element_ty
    cols, places = tl.arange(0, BD), tl.arange(0, BM)
    anchors_k = load_rows(AK + b * sak + h * M * D, places, cols, D, 1, M, D)
    x = tl.load(X + head * BM * BD + places[:, None] * BD + cols[None, :])
    for start in range(split * CHUNK, tl.minimum((split + 1) * CHUNK, N), BN):
        rows = start + tl.arange(0, BN)
        q = load_rows(Q + b * sqb + h * sqh, rows, cols, sqn, sqd, N, D)
        out = product(_anchor_softmax(q, anchors_k, M, kind, BM), x, kind)
        store_rows(OUT + b * sob + h * soh, out, rows, cols, son, sod, N, D)


@kernel
def _output_backward_kernel(
    Q, AK, DOUT, DX,
    sqb, sqh, sqn, sqd, sgb, sgh, sgn, sgd, sak, H, N, CHUNK,
    D: tl.constexpr, M: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of X over a chunk, (BM, BD)."""
    head, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    b, h = head // H, head % H
    kind = Q.dtype.element_ty
    cols, places = tl.arange(0, BD), tl.arange(0, BM)
    anchors_k = load_rows(AK + b * sak + h * M * D, places, cols, D, 1, M, D)
    d_x = tl.zeros((BM, BD), tl.float32)
    for start in range(split * CHUNK, tl.minimum((split + 1) * CHUNK, N), BN):
        rows = start + tl.arange(0, BN)
        q = load_rows(Q + b * sqb + h * sqh, rows, cols, sqn, sqd, N, D)
        grad = load_rows(DOUT + b * sgb + h * sgh, rows, cols, sgn, sgd, N, D)
        weights_q = transposed(_anchor_softmax(q, anchors_k, M, kind, BM), kind)
        d_x = add_product(d_x, weights_q, grad, kind)
    at = (head * tl.num_programs(1) + split) * BM * BD
    tl.store(DX + at + places[:, None] * BD + cols[None, :], d_x)


@kernel
def _backward_kernel(
    Q, K, V, AQ, AK, MASK, DOUT, X, LSE, DELTA, DS, DW, DQ, DK, DV, DANCHORS,
    sqb, sqh, sqn, sqd, skb, skh, skn, skd, svb, svh, svn, svd, sgb, sgh, sgn, sgd,
    sxb, sxh, sxn, sxd, saq, sak, H, N, CHUNK, root,
    D: tl.constexpr, M: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr,
    HAS_MASK: tl.constexpr, HAS_TRANSITION: tl.constexpr,
):  # fmt: skip
    """Compute gradients of the tokens and, over a chunk, of both anchors (2, BM, BD).

    Blocks are (BM, BN): so the fast products of sm_90, of 64 rows, take blocks of fewer tokens,
    whose sums fit the registers.
    """
    head, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    b, h = head // H, head % H
    kind = Q.dtype.element_ty
    cols, places = tl.arange(0, BD), tl.arange(0, BM)
    anchors_q = load_rows(AQ + b * saq + h * M * D, places, cols, D, 1, M, D)
    anchors_k = load_rows(AK + b * sak + h * M * D, places, cols, D, 1, M, D)
    wide = places[:, None] * BD + cols[None, :]
    square = places[:, None] * BM + places[None, :]
    d_state = tl.load(DS + head * BM * BD + wide).to(tl.float32)
    x = rounded(tl.load(X + head * BM * BD + wide), kind)
    if HAS_TRANSITION:
        d_walk = tl.load(DW + head * BM * BM + square).to(tl.float32)
    lse = tl.load(LSE + head * BM + places)
    delta, inverse = tl.load(DELTA + head * BM + places), 1 / root
    d_anchors_q = tl.zeros((BM, BD), tl.float32)
    d_anchors_k = tl.zeros((BM, BD), tl.float32)
    for start in range(split * CHUNK, tl.minimum((split + 1) * CHUNK, N), BN):
        rows = start + tl.arange(0, BN)
        real = real_tokens(MASK + b * N, rows, N, HAS_MASK)
        k = load_rows(K + b * skb + h * skh, rows, cols, skn, skd, N, D)
        logits = product_across(anchors_q, transposed(k, kind), kind)  # [BM, BN]
        # Weights are about 1 / N: times its root they and their products stay within float16.
        weights = exp(tl.minimum(logits - lse[:, None], 0.0)) * root
        weights = tl.where(real[None, :] & (places[:, None] < M), weights, 0.0)
        if kind == tl.float32:
            # Read again where they are used: all at once, in two parts each, would not fit.
            d_state = tl.load(DS + head * BM * BD + wide)
        dv = product_across(transposed(d_state, kind), weights, kind) * inverse
        store_rows(DV + b * sxb + h * sxh, tl.trans(dv), rows, cols, sxn, sxd, N, D)
        q = load_rows(Q + b * sqb + h * sqh, rows, cols, sqn, sqd, N, D)
        logits = product_across(anchors_k, transposed(q, kind), kind)
        logits = tl.where((places < M)[:, None], logits, LOWEST)
        weights_q = exp(logits - tl.max(logits, 0)[None, :])
        weights_q *= (1 / tl.sum(weights_q, 0))[None, :]
        v = load_rows(V + b * svb + h * svh, rows, cols, svn, svd, N, D)
        d_weights = product_across(d_state, transposed(v, kind), kind)
        if HAS_TRANSITION:
            if kind == tl.float32:
                d_walk = tl.load(DW + head * BM * BM + square)
            d_weights += product_across(d_walk, weights_q, kind)
        d_logits = weights * (d_weights - delta[:, None])
        dk = product_across(transposed(anchors_q, kind), d_logits, kind) * inverse
        store_rows(DK + b * sxb + h * sxh, tl.trans(dk), rows, cols, sxn, sxd, N, D)
        d_anchors_q = add_product(d_anchors_q, d_logits, k, kind)
        grad = load_rows(DOUT + b * sgb + h * sgh, rows, cols, sgn, sgd, N, D)
        if kind == tl.float32:
            x = tl.load(X + head * BM * BD + wide)
        d_weights = product_across(x, transposed(grad, kind), kind)
        if HAS_TRANSITION:
            d_weights += product_across(transposed(d_walk, kind), weights, kind) * inverse
        d_logits = weights_q * (d_weights - tl.sum(weights_q * d_weights, 0)[None, :])
        dq = product_across(transposed(anchors_k, kind), d_logits, kind)
        store_rows(DQ + b * sxb + h * sxh, tl.trans(dq), rows, cols, sxn, sxd, N, D)
        d_anchors_k = add_product(d_anchors_k, d_logits, q, kind)
    DANCHORS += (head * tl.num_programs(1) + split) * 2 * BM * BD + wide
    tl.store(DANCHORS, d_anchors_q * inverse)
    tl.store(DANCHORS + BM * BD, d_anchors_k)


def _state(options: Walk, shapes: Sequence[Any]) -> Memory:
    """Return the layout of S and the log of the masses; of several steps S beside W, last X."""
    *heads, _, dim = shapes[0]
    bd, bm = padded(dim), padded(shapes[3][-2])
    if options.steps == 1:
        return Memory((*heads, bm, bd), (*heads, bm))
    return Memory((*heads, bm, bd + bm), (*heads, bm), (*heads, bm, bd))


class _Launches:
    """Sizes that the launches of both passes share."""

    def __init__(self, key: CallKey) -> None:
        q, anchors, options = key.tokens(0), key.shapes[3], key.options
        self.key, self.q, self.num_anchors = key, q, anchors[-2]
        self.heads, self.count = (q.batch, q.heads), q.batch * q.heads
        self.bd, self.bm = padded(q.dim), padded(self.num_anchors)
        self.has_transition = options.steps != 1
        self.own_anchors = len(anchors) == 4  # else all images share them
        self.state = _state(options, key.shapes)
        self.image_stride = q.heads * self.num_anchors * q.dim if self.own_anchors else 0
        self.flags = dict(HAS_MASK=key.shapes[5] is not None, HAS_TRANSITION=self.has_transition)
        # Loop bounds: 0 where unused, because Triton would compile a constant 1 in.
        factors = series_factors(options.decay, torch.float32) if options.steps is None else 0
        # Not in a kernel: float32 has no digits of 1 - l left where l is close to 1.
        self.walk = (options.decay, normaliser(options), options.steps or 0, factors)

    def over_tokens(
        self, name: str, kernel: Any, strides: Sequence[int], *after: float, **flags: bool
    ) -> Launch:
        """Return a launch of one program per head and chunk of tokens."""
        return self.key.over_tokens(
            name, kernel, self.q, strides, after=after, num_anchors=self.num_anchors,
            M=self.num_anchors, BM=self.bm, **flags,
        )  # fmt: skip

    def few(self, splits: int) -> bool:
        """Return True if a solver adds the chunks; it has no registers for many anchors' sums."""
        return 1 < splits <= FEW_CHUNKS and self.bm <= 64

    def between_anchors(self, name: str, kernel, splits: int, **flags: bool) -> Launch:
        """Return a launch of one program per head, which adds ``splits`` chunks."""
        config = self.q.config(name, self.num_anchors)
        constants = dict(BD=self.bd, BM=self.bm, ENDLESS=self.key.options.steps is None, **flags)
        sizes, aligned = (*self.walk, splits), self.key.aligned
        return Launch(kernel, (self.count,), sizes, constants, config, aligned)


class _Forward(_Launches):
    def __init__(self, key: CallKey) -> None:
        super().__init__(key)
        q, (_, k_strides, v_strides, *_) = self.q, key.strides
        images = (self.image_stride, self.image_stride)
        self.sums = self.over_tokens(
            'anchor_state', _state_kernel, (*q.strides, *k_strides, *v_strides, *images),
            **self.flags,
        )  # fmt: skip
        cols = self.bd + self.bm if self.has_transition else self.bd
        splits, chunks = self.sums.splits, (*self.heads, self.sums.splits, self.bm)
        solver_adds = self.has_transition and self.few(splits)
        self.reduce = None
        if splits > 1 and not solver_adds:
            self.reduce = sum_of_chunks(key, self.count, splits, self.bm, cols, mode=SOFTMAX)
        self.scratch = Memory(chunks, *[chunks, (*chunks, cols)] * (splits > 1))
        if self.has_transition:
            self.solve = self.between_anchors(
                'anchor_solver', _solver_kernel, splits, ADD=solver_adds
            )
        self.output = self.over_tokens(
            'anchor_output', _output_kernel, (*q.strides, *token_strides(q), images[0])
        )

    def __call__(self, *tensors: Any) -> List[Tensor]:
        """Return the output and the state, see :func:`_state`.

        The tensors are q, k, v (B, heads, N, d), both anchors, and padding mask (B, N) or None.
        The anchors are contiguous, (heads, M, d) or (B, heads, M, d), of one dtype.
        """
        q, k, v, anchors_q, anchors_k, mask = tensors
        state, sums, lse, *x = self.state.allocate(q, self.output)
        _memory, top, *chunks = self.scratch.allocate(q, self.output)
        mass, parts = chunks or (lse, sums)  # one chunk is normalised by the kernel
        self.sums(q, k, v, anchors_q, anchors_k, as_bytes(mask, q), parts, top, mass)
        if self.reduce is not None:
            self.reduce(parts, top, mass, sums, sums, lse)
        if self.has_transition:
            self.solve(parts, top, mass, sums, lse, *x)
        out = token_major(q)
        self.output(q, anchors_k, *(x or [sums]), out)
        return [out, state]


class _Backward(_Launches):
    def __init__(self, key: CallKey) -> None:
        super().__init__(key)
        q, image = self.q, self.image_stride
        _, k_strides, v_strides, *_, grad_strides = key.strides
        self.output = self.over_tokens(
            'anchor_output_backward', _output_backward_kernel, (*q.strides, *grad_strides, image)
        )
        splits, size = self.output.splits, (self.bm, self.bd)
        self.add_x = None
        if splits > 1 and not self.few(splits):
            self.add_x = sum_of_chunks(key, self.count, splits, *size)
        self.solve = self.between_anchors(
            'anchor_solver_backward', _solver_backward_kernel, splits,
            HAS_TRANSITION=self.has_transition, ADD=self.few(splits),
        )  # fmt: skip
        self.tokens = self.over_tokens(
            'anchor_backward', _backward_kernel,
            (*q.strides, *k_strides, *v_strides, *grad_strides, *token_strides(q), image, image),
            q.num_tokens**0.5, **self.flags,
        )  # fmt: skip
        count, outer = (self.count, 1) if self.own_anchors else (q.heads, q.batch)
        self.add_anchors = sum_of_chunks(
            key, count, self.tokens.splits, *size, outer=outer, size=(self.num_anchors, q.dim),
            parts=2,
        )  # fmt: skip
        shapes = (self.bm,), (self.tokens.splits, 2, *size), (splits, *size)
        shapes = *shapes, *[size] * (self.add_x is not None)
        self.scratch = Memory(*[(*self.heads, *shape) for shape in shapes])

    def __call__(self, *tensors: Any) -> Tuple[Tensor, ...]:
        """Return the gradients of q, k, v and both anchors."""
        q, k, v, anchors_q, anchors_k, mask, state, grad = tensors
        bd, bm, last = self.bd, self.bm, self.add_anchors
        sums, lse, *x = self.state.parts(state, last)
        x = x[0] if x else sums
        _memory, delta, parts, dx, *total = self.scratch.allocate(q, last)
        self.output(q, anchors_k, grad, dx)
        if self.add_x is not None:
            self.add_x(dx, dx, dx, *total * 3)
            (dx,) = total
        ds, dw = q.new_empty((*self.heads, bm, bd)), q.new_empty((*self.heads, bm, bm))
        self.solve(sums, x, dx, ds, dw, delta)
        dq, dk, dv = token_major(q), token_major(k), token_major(v)
        self.tokens(
            q, k, v, anchors_q, anchors_k, as_bytes(mask, q), grad, x, lse, delta, ds, dw,
            dq, dk, dv, parts,
        )  # fmt: skip
        d_anchors_q, d_anchors_k = torch.empty_like(anchors_q), torch.empty_like(anchors_k)
        self.add_anchors(parts, parts, parts, d_anchors_q, d_anchors_k, parts)
        return dq, dk, dv, d_anchors_q, d_anchors_k


OPERATOR = KernelOperator(__name__, _Forward, _Backward, _state, Walk, num_sizes=0, num_gradients=5)
