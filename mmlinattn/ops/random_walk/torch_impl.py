"""Attention through anchors in torch, chunk by chunk: O(N d) memory, no N x M matrix is stored.

:class:`AnchorState` sums over the tokens for each anchor, :class:`AnchorOutput` mixes the anchors
for each token. Both recompute their softmax backwards; torch differentiates the steps between them.

On an accelerator the factors of products with half inputs are half as well, see
:func:`..common.numerics.product`. Weights of N tokens are about 1 / N: the backward pass multiplies
them by about the root of N, and divides their gradients by it, which keeps float16 in range.
"""

import math
from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from ..common.feature_maps import softmax_gradient
from ..common.first_derivative import first_derivative_only
from ..common.numerics import (
    Half,
    Mask,
    accumulation_dtype,
    chunk_of,
    factor_dtype,
    fits_cache,
    has_dispatch_mode,
    is_tracing,
    masked_softmax,
    needs_gradient,
    no_autocast,
    product,
    put_chunk,
    token_chunks,
    token_major,
)
from ..common.online_softmax import OnlineSoftmax
from .anchor_solver import Walk, iterative_pinv, solve_walk


def random_walk_torch(
    q: Tensor, k: Tensor, v: Tensor, anchors_q: Tensor, anchors_k: Tensor, options: Walk,
    mask: Mask, cross: bool,
) -> Tensor:  # fmt: skip
    """Compute :func:`mmlinattn.ops.random_walk_attention`."""
    # Half precision would lose the terms of small decays, and the first decimal of logits near 60.
    dtype, tracing = accumulation_dtype(q.dtype), is_tracing()
    anchors_q, anchors_k = anchors_q.to(dtype), anchors_k.to(dtype)
    walkers, count = k if cross else q, anchors_q.shape[-2]
    small = tracing or (factor_dtype(q) is None and fits_cache(q, count) and fits_cache(k, count))
    with no_autocast(q, tracing):
        # Counters see the products of large maps, so that costs of all sizes compare.
        if not small or (not tracing and has_dispatch_mode()):
            sources = walkers if options.steps != 1 else None
            state, transition = _anchor_state(sources, k, v, anchors_q, anchors_k, mask)
            return _anchor_output(q, anchors_k, solve_walk(state, transition, options))
        # A small map in one piece, which autograd differentiates.
        mixing = _anchor_softmax(q.to(dtype), anchors_k, None)  # G_Q: [B, H, N, M]
        padding = None if mask is None else mask[:, None, None]
        weights = masked_softmax(anchors_q @ k.to(dtype).transpose(-2, -1), padding)  # G_K
        transition = anchors_q.new_empty(0)
        if options.steps != 1:
            moves = mixing if walkers is q else _anchor_softmax(walkers.to(dtype), anchors_k, None)
            transition = weights @ moves
        return (mixing @ solve_walk(weights @ v.to(dtype), transition, options)).to(q.dtype)


def nystrom_torch(
    q: Tensor, k: Tensor, v: Tensor, anchors_q: Tensor, anchors_k: Tensor, steps: int, mask: Mask
) -> Tensor:
    """Compute :func:`mmlinattn.ops.nystrom_attention`."""
    dtype, scale = accumulation_dtype(q.dtype), q.shape[-1] ** -0.5
    with no_autocast(q):
        anchors_q, anchors_k = anchors_q.to(dtype), scale * anchors_k.to(dtype)
        landmarks = (anchors_q @ anchors_k.transpose(-2, -1)).softmax(-1)  # [B, H, M, M]
        matrix = iterative_pinv(landmarks, steps)
        state, _ = _anchor_state(None, k, v, scale * anchors_q, anchors_k, mask)  # [B, H, M, d_v]
        return _anchor_output(q, anchors_k, matrix @ state)


def _anchor_state(*args: Any) -> Tuple[Tensor, Tensor]:
    """Return the outputs of :class:`AnchorState`, in the dtype of the anchors."""
    differentiate = not is_tracing() and needs_gradient(*args[:5])
    return (AnchorState.apply if differentiate else _state)(*args)[:2]


def _anchor_output(q: Tensor, anchors: Tensor, x: Tensor) -> Tensor:
    """Return ``G_Q x``, (B, heads, N, d_v), in the dtype of q."""
    differentiate = not is_tracing() and needs_gradient(q, anchors, x)
    return (AnchorOutput.apply if differentiate else _output)(q, anchors, x)


class AnchorState(torch.autograd.Function):
    """``G_K v`` (B, heads, M, d_v) and ``G_K G_Q`` (B, heads, M, M), empty without ``q``."""

    @staticmethod
    def forward(ctx, *tensors: Optional[Tensor]) -> Tuple[Tensor, Tensor]:
        state, transition, log_mass = _state(*tensors)  # type: ignore[arg-type]
        ctx.save_for_backward(*tensors, state, transition, log_mass)
        return state, transition

    @staticmethod
    @first_derivative_only
    def backward(ctx, d_state: Tensor, d_transition: Tensor) -> Tuple[Optional[Tensor], ...]:
        q, k, v, anchors_q, anchors_k, mask, state, transition, log_mass = ctx.saved_tensors
        half = factor_dtype(v)
        dtype = half or anchors_q.dtype
        dq: Any = None
        dk: Any = None
        dv: Any = None
        d_anchors_q = state.new_zeros(*state.shape[:-1], k.shape[-1])
        d_anchors_k: Any = None if q is None else torch.zeros_like(d_anchors_q)
        with no_autocast(k, False):
            if half is not None:
                root = 2.0 ** (k.shape[2].bit_length() // 2)
                log_mass = log_mass - math.log(root)
                d_state, d_transition = d_state / root, d_transition / root
            # The sum that the gradient of the token softmax subtracts, in closed form.
            delta = (d_state * state).sum(-1, keepdim=True)
            if q is not None:
                delta = delta + (d_transition * transition).sum(-1, keepdim=True)
            for chunk in token_chunks(k, anchors_q.shape[-2], False):
                keys, values = chunk_of(k, chunk, dtype), chunk_of(v, chunk, dtype)
                weights = product(anchors_q, keys.mT, half).sub_(log_mass).exp_()
                if mask is not None:
                    weights.masked_fill_(mask[:, None, None, chunk], 0)
                d_weights = product(d_state, values.mT, half)
                if q is not None:
                    queries = chunk_of(q, chunk, dtype)
                    weights_q = _anchor_softmax(queries, anchors_k, half)
                    d_weights += product(d_transition, weights_q.mT, half)
                    d_logits = product(weights.mT, d_transition, half)
                    d_logits = softmax_gradient(weights_q, d_logits)
                    dq = put_chunk(dq, chunk, product(d_logits, anchors_k, half, True), q)
                    d_anchors_k += product(d_logits.mT, queries, half)
                dv = put_chunk(dv, chunk, product(weights.mT, d_state, half, True), v)
                d_logits = weights.mul_(d_weights.sub_(delta))
                dk = put_chunk(dk, chunk, product(d_logits.mT, anchors_q, half, True), k)
                d_anchors_q += product(d_logits, keys, half)
        if d_anchors_k is not None:
            d_anchors_k = d_anchors_k.sum_to_size(anchors_k.shape)
        # Images may share the anchors.
        return dq, dk, dv, d_anchors_q.sum_to_size(anchors_q.shape), d_anchors_k, None


class AnchorOutput(torch.autograd.Function):
    """``G_Q x``, (B, heads, N, d_v), for x (B, heads, M, d_v), in the type of q."""

    @staticmethod
    def forward(ctx, q: Tensor, anchors_k: Tensor, x: Tensor) -> Tensor:
        ctx.save_for_backward(q, anchors_k, x)
        return _output(q, anchors_k, x)

    @staticmethod
    @first_derivative_only
    def backward(ctx, grad: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
        q, anchors_k, x = ctx.saved_tensors
        half, dx = factor_dtype(q), torch.zeros_like(x)
        dtype = half or x.dtype
        dq: Any = None
        d_anchors = x.new_zeros(*x.shape[:-1], q.shape[-1])
        with no_autocast(q, False):
            for chunk in token_chunks(q, anchors_k.shape[-2], False):
                queries, grads = chunk_of(q, chunk, dtype), chunk_of(grad, chunk, dtype)
                weights_q = _anchor_softmax(queries, anchors_k, half)
                dx += product(weights_q.mT, grads, half)
                d_logits = softmax_gradient(weights_q, product(grads, x.mT, half))
                dq = put_chunk(dq, chunk, product(d_logits, anchors_k, half, True), q)
                d_anchors += product(d_logits.mT, queries, half)
        return dq, d_anchors.sum_to_size(anchors_k.shape), dx


def _state(
    q: Optional[Tensor], k: Tensor, v: Tensor, anchors_q: Tensor, anchors_k: Tensor, mask: Mask
) -> Tuple[Tensor, Tensor, Tensor]:
    """Return ``G_K v``, ``G_K G_Q`` and the log of each token softmax's sum, (B, heads, M, 1)."""
    half = factor_dtype(v)
    dtype = half or anchors_q.dtype
    softmax = OnlineSoftmax()
    state: Any = None  # a tensor after the first chunk
    transition: Any = None
    for chunk in token_chunks(k, anchors_q.shape[-2]):
        keys = chunk_of(k, chunk, dtype)
        logits = product(anchors_q, keys.transpose(-2, -1), half)  # [B, H, M, n]
        weights, fade = softmax.add(logits, None if mask is None else mask[:, None, None, chunk])
        part = product(weights, chunk_of(v, chunk, dtype), half)
        state = part if fade is None else state * fade + part
        if q is not None:
            weights_q = _anchor_softmax(chunk_of(q, chunk, dtype), anchors_k, half)
            part = product(weights, weights_q, half)
            transition = part if fade is None else transition * fade + part
    share = softmax.share()
    transition = anchors_q.new_empty(0) if q is None else transition * share
    return state * share, transition, softmax.log_mass()


def _output(q: Tensor, anchors_k: Tensor, x: Tensor) -> Tensor:
    """Return ``G_Q x``, (B, heads, N, d_v)."""
    half = factor_dtype(q)
    out: Any = None
    for chunk in token_chunks(q, anchors_k.shape[-2]):
        weights_q = _anchor_softmax(chunk_of(q, chunk, half or x.dtype), anchors_k, half)
        part = product(weights_q, x, half, True)
        if chunk.start is None:
            return part.to(q.dtype)
        out = token_major(q, x.shape[-1]) if out is None else out
        out[:, :, chunk] = part
    return out


def _anchor_softmax(q: Tensor, anchors_k: Tensor, half: Half) -> Tensor:
    """Return the softmax over the anchors, (B, heads, n, M)."""
    return product(q, anchors_k.transpose(-2, -1), half).softmax(-1)
