"""Kernels of attention through anchors, without an N x M matrix in memory.

``G_Q = softmax_anchors(q B_K^T)`` and ``G_K = softmax_tokens(B_Q k^T)`` exist block by block:

1. the first pass sums ``S = G_K v`` and ``W = G_K G_Q`` over the tokens (token softmax online);
2. one program per head solves the walk between the anchors, M x M in float32, into X;
3. the second pass computes ``G_Q X``.

The backward pass sums the gradient of X, differentiates the solver, and writes all gradients of the
tokens in one pass. It recomputes both softmaxes. Sums over tokens are written once per chunk.
"""

from typing import Optional, Tuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..common.numerics import token_major
from ..common.reduction import Masses, add_chunks, mean_of_chunks
from ..common.triton_helpers import (
    LOWEST,
    Launch,
    add_product,
    load_rows,
    padded,
    product,
    real_tokens,
    store_rows,
    strides,
)
from .anchor_solver import series_factors

FORWARD = ('anchor_state', 'anchor_solver', 'anchor_output')
KERNELS = (*FORWARD, 'anchor_output_backward', 'anchor_solver_backward', 'anchor_backward')


@triton.jit
def _anchor_softmax(q, anchors, M: tl.constexpr, kind: tl.constexpr, BM: tl.constexpr):
    """Compute the softmax over the anchors, (BN, BM), for q (BN, BD) and anchors (BM, BD)."""
    logits = product(q, tl.trans(anchors), kind)
    logits = tl.where(tl.arange(0, BM)[None, :] < M, logits, LOWEST)
    weights = tl.exp(logits - tl.max(logits, 1)[:, None])
    return weights / tl.sum(weights, 1)[:, None]


@triton.jit
def _softmax_backward(weights, grad):
    """Compute the gradient of the logits of a softmax over the last axis."""
    return weights * (grad - tl.sum(weights * grad, 1)[:, None])


@triton.jit
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
        logits = tl.where(real[None, :], product(anchors_q, tl.trans(k), kind), LOWEST)
        new_top = tl.maximum(top, tl.max(logits, 1))
        weights = tl.where(real[None, :], tl.exp(logits - new_top[:, None]), 0.0)  # [BM, BN]
        fade = tl.exp(top - new_top)
        top = new_top
        mass = mass * fade + tl.sum(weights, 1)
        state = add_product(state * fade[:, None], weights, v, kind)
        if HAS_TRANSITION:
            q = load_rows(Q + b * sqb + h * sqh, rows, cols, sqn, sqd, N, D)
            weights_q = _anchor_softmax(q, anchors_k, M, kind, BM)
            walk = add_product(walk * fade[:, None], weights, weights_q, kind)
    at = head * tl.num_programs(1) + split
    size: tl.constexpr = BD + BM if HAS_TRANSITION else BD
    SUMS += at * BM * size + places[:, None] * size
    tl.store(SUMS + cols[None, :], state)
    if HAS_TRANSITION:
        tl.store(SUMS + BD + places[None, :], walk)
    tl.store(TOP + at * BM + places, top)
    tl.store(MASS + at * BM + places, mass)


@triton.jit
def _solver_kernel(
    SUMS, MATRIX, X, decay, steps, factors,
    M: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, GIVEN: tl.constexpr,
    ENDLESS: tl.constexpr,
):  # fmt: skip
    """Apply all steps after the first one and the normaliser, in float32.

    GIVEN: multiply by a given matrix between the anchors instead.
    """
    head = tl.program_id(0).to(tl.int64)
    cols, places = tl.arange(0, BD), tl.arange(0, BM)
    size: tl.constexpr = BD if GIVEN else BD + BM
    SUMS += head * BM * size + places[:, None] * size
    state = tl.load(SUMS + cols[None, :])
    if GIVEN:
        x = product(load_rows(MATRIX + head * M * M, places, places, M, 1, M, M), state, tl.float32)
    else:
        walk = tl.load(SUMS + BD + places[None, :])
        x = _solve_walk(state, walk * decay, decay, steps, factors, ENDLESS)
    tl.store(X + head * BM * BD + places[:, None] * BD + cols[None, :], x)


@triton.jit
def _solve_walk(state, walk, decay, steps, factors, ENDLESS: tl.constexpr):
    """Compute (1 - l) (I - walk)^-1 state, or the mean of the first steps; l is the decay."""
    if ENDLESS:
        # (I - W)^-1 = (I + W)(I + W^2)(I + W^4)...: the rows of W sum to the decay, so the
        # error after n factors is decay^(2^n).
        state *= 1 - decay
        total = state + product(walk, state, tl.float32)
        for _ in range(1, factors):
            walk = product(walk, walk, tl.float32)
            total += product(walk, total, tl.float32)
    else:
        state *= _step_normaliser(decay, steps)
        total = state
        for _ in range(1, steps):
            total = state + product(walk, total, tl.float32)
    return total


@triton.jit
def _step_normaliser(decay, steps):
    """Return the normaliser of the first steps, ``(1 - l) / (1 - l^steps)``."""
    return (1 - decay) / (1 - tl.exp(steps * tl.log(decay)))


@triton.jit
def _solver_backward_kernel(
    SUMS, MATRIX, X, DX, DS, DW, DELTA, decay, steps, factors,
    M: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, HAS_TRANSITION: tl.constexpr,
    GIVEN: tl.constexpr, ENDLESS: tl.constexpr,
):  # fmt: skip
    """Compute gradients of S and W, or of the given matrix, and delta (BM,).

    delta is the sum that the gradient of the token softmax subtracts.
    """
    head = tl.program_id(0).to(tl.int64)
    cols, places = tl.arange(0, BD), tl.arange(0, BM)
    size: tl.constexpr = BD + BM if HAS_TRANSITION else BD
    SUMS += head * BM * size + places[:, None] * size
    wide = head * BM * BD + places[:, None] * BD + cols[None, :]
    grad = tl.load(DX + wide)
    if HAS_TRANSITION:
        back = tl.trans(tl.load(SUMS + BD + places[None, :])) * decay
        d_state = _solve_walk(grad, back, decay, steps, factors, ENDLESS)
        if ENDLESS:
            # X = (1 - l) (I - l W)^-1 S: its differential has no more inverses.
            x = tl.load(X + wide)
            d_walk = product(d_state, tl.trans(x), tl.float32) * (decay / (1 - decay))
        else:
            # sum_{a + b <= steps - 2} (l W^T)^a grad S^T (l W^T)^b
            state = tl.load(SUMS + cols[None, :])
            last = product(grad * _step_normaliser(decay, steps), tl.trans(state), tl.float32)
            row, d_walk = last, last
            for _ in range(2, steps):
                row = last + product(row, back, tl.float32)
                d_walk = row + product(back, d_walk, tl.float32)
            d_walk *= decay
        tl.store(DW + head * BM * BM + places[:, None] * BM + places[None, :], d_walk)
        delta = tl.sum(d_walk * tl.load(SUMS + BD + places[None, :]), 1)
    else:
        d_state = grad
        if GIVEN:
            anchor_matrix = load_rows(MATRIX + head * M * M, places, places, M, 1, M, M)
            d_state = product(tl.trans(anchor_matrix), grad, tl.float32)
            d_anchor_matrix = product(grad, tl.trans(tl.load(SUMS + cols[None, :])), tl.float32)
            store_rows(DW + head * M * M, d_anchor_matrix, places, places, M, 1, M, M)
        delta = tl.zeros((BM,), tl.float32)
    delta += tl.sum(d_state * tl.load(SUMS + cols[None, :]), 1)
    tl.store(DS + wide, d_state)
    tl.store(DELTA + head * BM + places, delta)


@triton.jit
def _output_kernel(
    Q, AK, X, OUT, sqb, sqh, sqn, sqd, sob, soh, son, sod, sak, H, N, CHUNK,
    D: tl.constexpr, M: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
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


@triton.jit
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
        d_x = add_product(d_x, tl.trans(_anchor_softmax(q, anchors_k, M, kind, BM)), grad, kind)
    at = (head * tl.num_programs(1) + split) * BM * BD
    tl.store(DX + at + places[:, None] * BD + cols[None, :], d_x)


@triton.jit
def _backward_kernel(
    Q, K, V, AQ, AK, MASK, DOUT, X, LSE, DELTA, DS, DW, DQ, DK, DV, DANCHORS,
    sqb, sqh, sqn, sqd, skb, skh, skn, skd, svb, svh, svn, svd, sgb, sgh, sgn, sgd,
    sxb, sxh, sxn, sxd, saq, sak, H, N, CHUNK, root,
    D: tl.constexpr, M: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr,
    HAS_MASK: tl.constexpr, HAS_TRANSITION: tl.constexpr,
):  # fmt: skip
    """Compute gradients of the tokens and, over a chunk, of both anchors (2, BM, BD)."""
    head, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    b, h = head // H, head % H
    kind = Q.dtype.element_ty
    cols, places = tl.arange(0, BD), tl.arange(0, BM)
    anchors_q = load_rows(AQ + b * saq + h * M * D, places, cols, D, 1, M, D)
    anchors_k = load_rows(AK + b * sak + h * M * D, places, cols, D, 1, M, D)
    wide = places[:, None] * BD + cols[None, :]
    d_state, x = tl.load(DS + head * BM * BD + wide), tl.load(X + head * BM * BD + wide)
    if HAS_TRANSITION:
        d_walk = tl.load(DW + head * BM * BM + places[:, None] * BM + places[None, :])
    lse = tl.load(LSE + head * BM + places)
    delta = tl.load(DELTA + head * BM + places)
    d_anchors_q = tl.zeros((BM, BD), tl.float32)
    d_anchors_k = tl.zeros((BM, BD), tl.float32)
    for start in range(split * CHUNK, tl.minimum((split + 1) * CHUNK, N), BN):
        rows = start + tl.arange(0, BN)
        real = real_tokens(MASK + b * N, rows, N, HAS_MASK)
        k = load_rows(K + b * skb + h * skh, rows, cols, skn, skd, N, D)
        logits = product(k, tl.trans(anchors_q), kind)  # [BN, BM]
        inside = real[:, None] & (places[None, :] < M)
        # Weights are about 1 / N: times its root they and their products stay within float16.
        weights = tl.where(inside, tl.exp(tl.minimum(logits - lse[None, :], 0.0)), 0.0) * root
        if kind == tl.float32:
            # Read again where they are used: all at once, in two parts each, would not fit.
            d_state = tl.load(DS + head * BM * BD + wide)
        dv = product(weights, d_state, kind) / root
        store_rows(DV + b * sxb + h * sxh, dv, rows, cols, sxn, sxd, N, D)
        v = load_rows(V + b * svb + h * svh, rows, cols, svn, svd, N, D)
        d_weights = product(v, tl.trans(d_state), kind)
        q = load_rows(Q + b * sqb + h * sqh, rows, cols, sqn, sqd, N, D)
        grad = load_rows(DOUT + b * sgb + h * sgh, rows, cols, sgn, sgd, N, D)
        if kind == tl.float32:
            x = tl.load(X + head * BM * BD + wide)
        weights_q = _anchor_softmax(q, anchors_k, M, kind, BM)
        d_weights_q = product(grad, tl.trans(x), kind)
        if HAS_TRANSITION:
            if kind == tl.float32:
                d_walk = tl.load(DW + head * BM * BM + places[:, None] * BM + places[None, :])
            d_weights += product(weights_q, tl.trans(d_walk), kind)
            d_weights_q += product(weights, d_walk, kind) / root
        d_logits = _softmax_backward(weights_q, d_weights_q)
        dq = product(d_logits, anchors_k, kind)
        store_rows(DQ + b * sxb + h * sxh, dq, rows, cols, sxn, sxd, N, D)
        d_anchors_k = add_product(d_anchors_k, tl.trans(d_logits), q, kind)
        d_logits = weights * (d_weights - delta[None, :])
        dk = product(d_logits, anchors_q, kind) / root
        store_rows(DK + b * sxb + h * sxh, dk, rows, cols, sxn, sxd, N, D)
        d_anchors_q = add_product(d_anchors_q, tl.trans(d_logits), k, kind)
    DANCHORS += (head * tl.num_programs(1) + split) * 2 * BM * BD + wide
    tl.store(DANCHORS, d_anchors_q / root)
    tl.store(DANCHORS + BM * BD, d_anchors_k)


class AnchorLaunch(Launch):
    """Launcher with the sizes that all kernels of one call share."""

    def __init__(
        self,
        q: Tensor,
        anchors_q: Tensor,
        anchors_k: Tensor,
        mask: Optional[Tensor],
        anchor_matrix: Optional[Tensor],
        decay: float,
        steps: Optional[int],
    ) -> None:
        self.anchors = anchors_q.shape[-2]
        super().__init__(q, mask, self.anchors)
        self.bm = padded(self.anchors)
        self.given = anchor_matrix is not None
        self.has_transition = dict(HAS_TRANSITION=steps != 1 and not self.given)
        # True if a step between the anchors follows the sums over the tokens.
        self.has_solver = self.given or steps != 1
        self.flags = dict(M=self.anchors, GIVEN=self.given, ENDLESS=steps is None)
        # Loop bounds: 0 where unused, because Triton would compile a constant 1 in.
        factors = 0 if steps is not None else series_factors(decay, torch.float32)
        self.walk = (decay, steps or 0, factors)
        self.images = (_image_stride(anchors_q), _image_stride(anchors_k))
        self.sizes = (self.heads, self.num_tokens)
        self.square = dict(BD=self.bd, BM=self.bm)
        self.blocks = dict(D=self.dim, M=self.anchors, **self.square)


def _image_stride(anchors: Tensor) -> int:
    """Return the stride between the anchors of two images, 0 if all images share them."""
    return anchors.stride(0) if anchors.dim() == 4 else 0


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    anchors_q: Tensor,
    anchors_k: Tensor,
    mask: Optional[Tensor],
    anchor_matrix: Optional[Tensor],
    decay: float,
    steps: Optional[int],
) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    """Run the forward pass.

    Returns:
        the output; S beside W (B, heads, BM, BD [+ BM]); the log of the masses (B, heads, BM);
        and X (B, heads, BM, BD), empty if it is S.
    """
    launch = AnchorLaunch(q, anchors_q, anchors_k, mask, anchor_matrix, decay, steps)
    bd, bm = launch.bd, launch.bm
    size = bd + bm if launch.has_transition['HAS_TRANSITION'] else bd
    sums = launch.parts('anchor_state', bm, size)
    top, mass = launch.parts('anchor_state', bm), launch.parts('anchor_state', bm)
    launch.run(
        'anchor_state', _state_kernel,
        q, k, v, anchors_q, anchors_k, launch.mask, sums, top, mass,
        *strides(q), *strides(k), *strides(v), *launch.images, *launch.sizes,
        **launch.blocks, **launch.has_mask, **launch.has_transition,
    )  # fmt: skip
    sums, lse = mean_of_chunks(sums, Masses(mass, top))
    x = sums.new_empty(0)
    if launch.has_solver:
        x = launch.empty(bm, bd)
        launch.start(
            'anchor_solver', _solver_kernel, (launch.batch * launch.heads,),
            sums, sums if anchor_matrix is None else anchor_matrix, x, *launch.walk,
            **launch.square, **launch.flags,
        )  # fmt: skip
    out = token_major(q)
    launch.run(
        'anchor_output', _output_kernel,
        q, anchors_k, x if launch.has_solver else sums, out, *strides(q), *strides(out),
        launch.images[1], *launch.sizes, **launch.blocks,
    )  # fmt: skip
    return out, sums, lse, x


def backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    anchors_q: Tensor,
    anchors_k: Tensor,
    mask: Optional[Tensor],
    anchor_matrix: Optional[Tensor],
    sums: Tensor,
    lse: Tensor,
    x: Tensor,
    decay: float,
    steps: Optional[int],
) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return gradients of q, k, v, both anchors and the anchor matrix (empty without one)."""
    launch = AnchorLaunch(q, anchors_q, anchors_k, mask, anchor_matrix, decay, steps)
    bd, bm = launch.bd, launch.bm
    x = x if launch.has_solver else sums
    parts = launch.parts('anchor_output_backward', 1, bm, bd)
    launch.run(
        'anchor_output_backward', _output_backward_kernel, q, anchors_k, grad, parts,
        *strides(q), *strides(grad), launch.images[1], *launch.sizes, **launch.blocks,
    )  # fmt: skip
    dx = add_chunks(parts, launch.empty(bm, bd))
    ds, delta = launch.empty(bm, bd), launch.empty(bm)
    d_anchor_matrix = ds.new_empty(0) if anchor_matrix is None else torch.empty_like(anchor_matrix)
    dw = launch.empty(bm, bm) if launch.has_transition['HAS_TRANSITION'] else d_anchor_matrix
    launch.start(
        'anchor_solver_backward', _solver_backward_kernel, (launch.batch * launch.heads,),
        sums, sums if anchor_matrix is None else anchor_matrix, x, dx, ds, dw, delta, *launch.walk,
        **launch.square, **launch.has_transition, **launch.flags,
    )  # fmt: skip
    dq, dk, dv = (token_major(t) for t in (q, k, v))
    parts = launch.parts('anchor_backward', 2, bm, bd)
    launch.run(
        'anchor_backward', _backward_kernel,
        q, k, v, anchors_q, anchors_k, launch.mask, grad, x, lse, delta, ds, dw, dq, dk, dv, parts,
        *strides(q), *strides(k), *strides(v), *strides(grad), *strides(dq), *launch.images,
        *launch.sizes, root=launch.root,
        **launch.blocks, **launch.has_mask, **launch.has_transition,
    )  # fmt: skip
    d_anchors_q, d_anchors_k = (torch.empty_like(a) for a in (anchors_q, anchors_k))
    add_chunks(parts, d_anchors_q, part=0)
    add_chunks(parts, d_anchors_k, part=1)
    return dq, dk, dv, d_anchors_q, d_anchors_k, d_anchor_matrix
