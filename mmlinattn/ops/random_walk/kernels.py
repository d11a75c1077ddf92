"""Random walk attention: the two softmaxes and their products without an N x M matrix.

``G_Q = softmax_anchors(q B_K^T)`` and ``G_K = softmax_tokens(B_Q k^T)`` appear block by block. The
first pass sums ``S = G_K v`` and ``W = G_K G_Q`` over the tokens, with the token softmax taken
online; torch walks on between the anchors, M x M; the second pass reads ``G_Q X`` out. Gradients
recompute both softmaxes. What is summed over tokens is written once a chunk of tokens.
"""

from typing import Optional, Tuple

import triton
import triton.language as tl
from torch import Tensor

from ..common.numerics import token_major
from ..common.triton import (
    LOWEST,
    OPTIONS,
    Launch,
    load_rows,
    padded,
    product,
    real_tokens,
    store_rows,
    strides,
)

# Of the largest kernel, see :func:`..common.triton.refuses`; for up to 64 anchors and for more.
SHARED_KIB = (dict(half=(88, 136), float=(128, 160)), dict(half=(176, 280), float=(208, 320)))


@triton.jit
def _anchor_softmax(q, anchors, M, kind: tl.constexpr, BM: tl.constexpr):
    """Softmax over the anchors, (BN, BM), for q (BN, BD) and anchors (BM, BD)."""
    logits = product(q, tl.trans(anchors), kind)
    logits = tl.where(tl.arange(0, BM)[None, :] < M, logits, LOWEST)
    weights = tl.exp(logits - tl.max(logits, 1)[:, None])
    return weights / tl.sum(weights, 1)[:, None]


@triton.jit
def _softmax_backward(weights, grad):
    """Gradient of the logits of a softmax over the last axis."""
    return weights * (grad - tl.sum(weights * grad, 1)[:, None])


@triton.jit
def _state_kernel(
    Q, K, V, AQ, AK, MASK, S, W, TOP, MASS,
    sqb, sqh, sqn, sqd, skb, skh, skn, skd, svb, svh, svn, svd, saq, sak,
    H, N, D, M, CHUNK,
    BN: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr,
    HAS_MASK: tl.constexpr, HAS_WALK: tl.constexpr,
):  # fmt: skip
    """Of one chunk: S (BM, BD), W (BM, BM), largest logit and mass of each anchor."""
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
        state = state * fade[:, None] + product(weights, v, kind)
        if HAS_WALK:
            q = load_rows(Q + b * sqb + h * sqh, rows, cols, sqn, sqd, N, D)
            looked_up = _anchor_softmax(q, anchors_k, M, kind, BM)
            walk = walk * fade[:, None] + product(weights, looked_up, kind)
    at = head * tl.num_programs(1) + split
    tl.store(S + at * BM * BD + places[:, None] * BD + cols[None, :], state)
    if HAS_WALK:
        tl.store(W + at * BM * BM + places[:, None] * BM + places[None, :], walk)
    tl.store(TOP + at * BM + places, top)
    tl.store(MASS + at * BM + places, mass)


@triton.jit
def _state_backward_kernel(
    Q, K, V, AQ, AK, MASK, LSE, DELTA, DS, DW, DQ, DK, DV, DAQ, DAK,
    sqb, sqh, sqn, sqd, skb, skh, skn, skd, svb, svh, svn, svd, sxb, sxh, sxn, sxd, saq, sak,
    H, N, D, M, CHUNK, root,
    BN: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr,
    HAS_MASK: tl.constexpr, HAS_WALK: tl.constexpr,
):  # fmt: skip
    head, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    b, h = head // H, head % H
    kind = Q.dtype.element_ty
    cols, places = tl.arange(0, BD), tl.arange(0, BM)
    anchors_q = load_rows(AQ + b * saq + h * M * D, places, cols, D, 1, M, D)
    d_state = tl.load(DS + head * BM * BD + places[:, None] * BD + cols[None, :])
    lse = tl.load(LSE + head * BM + places)
    # Weights are about 1 / N: times its root they and their products stay within float16.
    delta = tl.load(DELTA + head * BM + places)
    d_anchors_q = tl.zeros((BM, BD), tl.float32)
    if HAS_WALK:
        anchors_k = load_rows(AK + b * sak + h * M * D, places, cols, D, 1, M, D)
        d_walk = tl.load(DW + head * BM * BM + places[:, None] * BM + places[None, :])
        d_anchors_k = tl.zeros((BM, BD), tl.float32)
    for start in range(split * CHUNK, tl.minimum((split + 1) * CHUNK, N), BN):
        rows = start + tl.arange(0, BN)
        real = real_tokens(MASK + b * N, rows, N, HAS_MASK)
        k = load_rows(K + b * skb + h * skh, rows, cols, skn, skd, N, D)
        v = load_rows(V + b * svb + h * svh, rows, cols, svn, svd, N, D)
        logits = product(k, tl.trans(anchors_q), kind)  # [BN, BM]
        inside = real[:, None] & (places[None, :] < M)
        weights = tl.where(inside, tl.exp(tl.minimum(logits - lse[None, :], 0.0)), 0.0) * root
        d_weights = product(v, tl.trans(d_state), kind)
        if HAS_WALK:
            q = load_rows(Q + b * sqb + h * sqh, rows, cols, sqn, sqd, N, D)
            looked_up = _anchor_softmax(q, anchors_k, M, kind, BM)
            d_weights += product(looked_up, tl.trans(d_walk), kind)
            d_looked_up = product(weights, d_walk, kind) / root
            d_logits = _softmax_backward(looked_up, d_looked_up)
            dq = product(d_logits, anchors_k, kind)
            d_anchors_k += product(tl.trans(d_logits), q, kind)
            store_rows(DQ + b * sxb + h * sxh, dq, rows, cols, sxn, sxd, N, D)
        d_logits = weights * (d_weights - delta[None, :])
        dk = product(d_logits, anchors_q, kind) / root
        dv = product(weights, d_state, kind) / root
        d_anchors_q += product(tl.trans(d_logits), k, kind) / root
        store_rows(DK + b * sxb + h * sxh, dk, rows, cols, sxn, sxd, N, D)
        store_rows(DV + b * sxb + h * sxh, dv, rows, cols, sxn, sxd, N, D)
    at = (head * tl.num_programs(1) + split) * BM * BD
    at += places[:, None] * BD + cols[None, :]
    tl.store(DAQ + at, d_anchors_q)
    if HAS_WALK:
        tl.store(DAK + at, d_anchors_k)


@triton.jit
def _readout_kernel(
    Q, AK, X, OUT, sqb, sqh, sqn, sqd, sob, soh, son, sod, sak, H, N, D, M, CHUNK,
    BN: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    head, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    b, h = head // H, head % H
    kind = Q.dtype.element_ty
    cols, places = tl.arange(0, BD), tl.arange(0, BM)
    anchors_k = load_rows(AK + b * sak + h * M * D, places, cols, D, 1, M, D)
    x = load_rows(X + head * M * D, places, cols, D, 1, M, D)
    for start in range(split * CHUNK, tl.minimum((split + 1) * CHUNK, N), BN):
        rows = start + tl.arange(0, BN)
        q = load_rows(Q + b * sqb + h * sqh, rows, cols, sqn, sqd, N, D)
        out = product(_anchor_softmax(q, anchors_k, M, kind, BM), x, kind)
        store_rows(OUT + b * sob + h * soh, out, rows, cols, son, sod, N, D)


@triton.jit
def _readout_backward_kernel(
    Q, AK, X, DOUT, DQ, DAK, DX,
    sqb, sqh, sqn, sqd, sgb, sgh, sgn, sgd, sxb, sxh, sxn, sxd, sak, H, N, D, M, CHUNK,
    BN: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    head, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    b, h = head // H, head % H
    kind = Q.dtype.element_ty
    cols, places = tl.arange(0, BD), tl.arange(0, BM)
    anchors_k = load_rows(AK + b * sak + h * M * D, places, cols, D, 1, M, D)
    x = load_rows(X + head * M * D, places, cols, D, 1, M, D)
    d_anchors, d_x = tl.zeros((BM, BD), tl.float32), tl.zeros((BM, BD), tl.float32)
    for start in range(split * CHUNK, tl.minimum((split + 1) * CHUNK, N), BN):
        rows = start + tl.arange(0, BN)
        q = load_rows(Q + b * sqb + h * sqh, rows, cols, sqn, sqd, N, D)
        grad = load_rows(DOUT + b * sgb + h * sgh, rows, cols, sgn, sgd, N, D)
        weights = _anchor_softmax(q, anchors_k, M, kind, BM)
        d_x += product(tl.trans(weights), grad, kind)
        d_logits = _softmax_backward(weights, product(grad, tl.trans(x), kind))
        d_anchors += product(tl.trans(d_logits), q, kind)
        dq = product(d_logits, anchors_k, kind)
        store_rows(DQ + b * sxb + h * sxh, dq, rows, cols, sxn, sxd, N, D)
    at = (head * tl.num_programs(1) + split) * BM * BD
    at += places[:, None] * BD + cols[None, :]
    tl.store(DAK + at, d_anchors)
    tl.store(DX + at, d_x)


class WalkLaunch(Launch):
    """Sizes that all kernels of one call share."""

    def __init__(self, q: Tensor, num_anchors: int, mask: Optional[Tensor]) -> None:
        self.anchors, self.bm = num_anchors, padded(num_anchors)
        super().__init__(q, mask, widest=max(padded(q.shape[-1]), self.bm))
        self.sizes = (self.heads, self.num_tokens, self.dim, num_anchors, self.chunk)
        self.blocks = dict(BN=self.bn, BD=self.bd, BM=self.bm, **OPTIONS)

    def zero_filled(self, x: Tensor, *shape: int) -> Tensor:
        """The last two dims of a contiguous copy filled up with zeros."""
        out = x.new_zeros(*x.shape[:-2], *shape)
        out[..., : x.shape[-2], : x.shape[-1]] = x
        return out


def _image_stride(anchors: Tensor) -> int:
    """Between the anchors of two images, 0 where all share one set; (..., M, d) contiguous."""
    return anchors.stride(0) if anchors.dim() == 4 else 0


def make_state(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    anchors_q: Tensor,
    anchors_k: Tensor,
    mask: Optional[Tensor],
    has_walk: bool,
) -> Tuple[Tensor, Tensor, Tensor]:
    """S (B, heads, M, d), W (B, heads, M, M) and the log of the masses (B, heads, M)."""
    launch = WalkLaunch(q, anchors_q.shape[-2], mask)
    bd, bm, m = launch.bd, launch.bm, launch.anchors
    s, top, mass = (launch.per_chunk(*shape) for shape in ((bm, bd), (bm,), (bm,)))
    w = launch.per_chunk(bm, bm) if has_walk else s
    _state_kernel[launch.grid](
        q, k, v, anchors_q, anchors_k, launch.mask, s, w, top, mass,
        *strides(q), *strides(k), *strides(v), _image_stride(anchors_q),
        _image_stride(anchors_k), *launch.sizes,
        HAS_WALK=has_walk, **launch.blocks, **launch.has_mask,
    )  # fmt: skip
    best = top.amax(2, keepdim=True)
    fade = (top - best).exp()
    total = (mass * fade).sum(2)  # [B, H, BM]
    share = (fade / total.where(total > 0, 1)[:, :, None])[..., None]
    lse = best.squeeze(2) + total.clamp(min=1e-30).log()
    s = (s * share).sum(2)[..., :m, : launch.dim].contiguous()
    w = (w * share).sum(2)[..., :m, :m].contiguous() if has_walk else s.new_empty(0)
    return s, w, lse[..., :m].contiguous()


def state_backward(
    ds: Tensor,
    dw: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    anchors_q: Tensor,
    anchors_k: Tensor,
    mask: Optional[Tensor],
    s: Tensor,
    w: Tensor,
    lse: Tensor,
    has_walk: bool,
) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v and, for each image, of both anchors in float32."""
    launch = WalkLaunch(q, anchors_q.shape[-2], mask)
    bd, bm, m = launch.bd, launch.bm, launch.anchors
    # What the token softmax subtracts, in closed form.
    delta = (ds * s).sum(-1)
    if has_walk:
        delta = delta + (dw * w).sum(-1)
    dq, dk, dv = (token_major(x) for x in (q, k, v))
    daq, dak = launch.per_chunk(bm, bd), launch.per_chunk(bm, bd)
    if not has_walk:
        dq.zero_()
        dak.zero_()
    _state_backward_kernel[launch.grid](
        q, k, v, anchors_q, anchors_k, launch.mask, *(
            launch.zero_filled(x[..., None], bm, 1) for x in (lse, delta)
        ),
        launch.zero_filled(ds, bm, bd), launch.zero_filled(dw, bm, bm) if has_walk else ds,
        dq, dk, dv, daq, dak,
        *strides(q), *strides(k), *strides(v), *strides(dq), _image_stride(anchors_q),
        _image_stride(anchors_k), *launch.sizes, launch.root,
        HAS_WALK=has_walk, **launch.blocks, **launch.has_mask,
    )  # fmt: skip
    daq, dak = (x.sum(2)[..., :m, : launch.dim] for x in (daq, dak))
    return dq, dk, dv, daq, dak


def read_out(q: Tensor, anchors_k: Tensor, x: Tensor) -> Tensor:
    """``G_Q x``, (B, heads, N, d), for x (B, heads, M, d) contiguous."""
    launch = WalkLaunch(q, anchors_k.shape[-2], None)
    out = token_major(q)
    _readout_kernel[launch.grid](
        q, anchors_k, x, out, *strides(q), *strides(out), _image_stride(anchors_k),
        *launch.sizes, **launch.blocks,
    )  # fmt: skip
    return out


def readout_backward(
    grad: Tensor, q: Tensor, anchors_k: Tensor, x: Tensor
) -> Tuple[Tensor, Tensor, Tensor]:
    """Gradients of q and, in float32 and for each image, of anchors_k and x."""
    launch = WalkLaunch(q, anchors_k.shape[-2], None)
    dq = token_major(q)
    dak, dx = (launch.per_chunk(launch.bm, launch.bd) for _ in range(2))
    _readout_backward_kernel[launch.grid](
        q, anchors_k, x, grad, dq, dak, dx, *strides(q), *strides(grad), *strides(dq),
        _image_stride(anchors_k), *launch.sizes, **launch.blocks,
    )  # fmt: skip
    dak, dx = (t.sum(2)[..., : launch.anchors, : launch.dim] for t in (dak, dx))
    return dq, dak, dx
