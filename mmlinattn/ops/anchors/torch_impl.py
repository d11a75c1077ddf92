"""Attention through anchors in torch, chunk by chunk: O(N d) memory, no N x M matrix is stored.

Two autograd functions: :class:`AnchorState` sums over the tokens for each anchor (token softmax
online), :class:`AnchorOutput` mixes the anchors for each token. Both recompute their softmax in the
backward pass. The M x M steps between them are differentiated by torch.
"""

from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from ..common.first_derivative import first_derivative_only
from ..common.numerics import (
    accumulation_dtype,
    chunk_of,
    fits_cache,
    has_dispatch_mode,
    is_tracing,
    masked_softmax,
    needs_gradient,
    no_autocast,
    token_chunks,
    token_major,
)
from ..common.online_softmax import OnlineSoftmax
from .anchor_solver import iterative_pinv, solve_walk
from .options import NystromOptions, WalkOptions


def random_walk_torch(
    q: Tensor, k: Tensor, v: Tensor, anchors_q: Tensor, anchors_k: Tensor, options: WalkOptions
) -> Tensor:
    """Compute :func:`mmlinattn.ops.random_walk_attention`."""
    # Half precision would lose the terms of small decays, and the first decimal of logits near 60.
    dtype = accumulation_dtype(q.dtype)
    anchors_q, anchors_k = anchors_q.to(dtype), anchors_k.to(dtype)
    walkers = k if options.cross else q
    with no_autocast(q):
        # Counters see the products of large maps, so that costs of all sizes compare.
        if is_tracing() or (
            not has_dispatch_mode() and all(fits_cache(x, anchors_q.shape[-2]) for x in (q, k))
        ):
            return _random_walk(q, walkers, k, v, anchors_q, anchors_k, options)
        tokens = (walkers, k, v, anchors_q, anchors_k, options.key_padding_mask, options.steps != 1)
        return _anchor_output(q, anchors_k, solve_walk(*_anchor_state(*tokens), options))


def _random_walk(
    q: Tensor,
    walkers: Tensor,
    k: Tensor,
    v: Tensor,
    anchors_q: Tensor,
    anchors_k: Tensor,
    options: WalkOptions,
) -> Tensor:
    """Compute the walk of a small map in one piece, which autograd differentiates."""
    dtype, mask = anchors_q.dtype, options.key_padding_mask
    padding = None if mask is None else mask[:, None, None]
    mixing = _anchor_softmax(q.to(dtype), anchors_k)  # G_Q: [B, H, N, M]
    weights = masked_softmax(anchors_q @ k.to(dtype).transpose(-2, -1), padding)  # G_K
    transition = anchors_q.new_empty(0)
    if options.steps != 1:
        moves = mixing if walkers is q else _anchor_softmax(walkers.to(dtype), anchors_k)
        transition = weights @ moves
    return (mixing @ solve_walk(weights @ v.to(dtype), transition, options)).to(q.dtype)


def nystrom_torch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    landmarks_q: Tensor,
    landmarks_k: Tensor,
    options: NystromOptions,
) -> Tensor:
    """Compute :func:`mmlinattn.ops.nystrom_attention`."""
    dtype, scale = accumulation_dtype(q.dtype), q.shape[-1] ** -0.5
    with no_autocast(q):
        landmarks_q, landmarks_k = landmarks_q.to(dtype), scale * landmarks_k.to(dtype)
        landmarks = (landmarks_q @ landmarks_k.transpose(-2, -1)).softmax(-1)  # [B, H, M, M]
        matrix = iterative_pinv(landmarks, options.iterations)
        mask = options.key_padding_mask
        return attend_by_matrix_torch(q, k, v, scale * landmarks_q, landmarks_k, matrix, mask)


def attend_by_matrix_torch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    anchors_q: Tensor,
    anchors_k: Tensor,
    anchor_matrix: Tensor,
    mask: Optional[Tensor],
) -> Tensor:
    """Compute ``G_Q anchor_matrix G_K v`` for any matrix between the anchors.

    Args:
        anchor_matrix: (B, heads, M, M), in the dtype of the accumulation.
    """
    dtype = accumulation_dtype(q.dtype)
    anchors_q = anchors_q.to(dtype)
    state, _ = _anchor_state(k, k, v, anchors_q, anchors_q, mask, False)  # [B, H, M, d_v]
    return _anchor_output(q, anchors_k.to(dtype), anchor_matrix @ state)


def _anchor_state(*args: Any) -> Tuple[Tensor, Tensor]:
    """Return the outputs of :class:`AnchorState`, in the dtype of the anchors."""
    differentiate = not is_tracing() and needs_gradient(*args[:5])
    return (AnchorState.apply if differentiate else _state)(*args)[:2]


def _anchor_output(q: Tensor, anchors: Tensor, x: Tensor) -> Tensor:
    """Return ``G_Q x``, (B, heads, N, d_v), in the dtype of q."""
    differentiate = not is_tracing() and needs_gradient(q, anchors, x)
    return (AnchorOutput.apply if differentiate else _output)(q, anchors, x)


class AnchorState(torch.autograd.Function):
    """``G_K v`` (B, heads, M, d_v) and ``G_K G_Q`` (B, heads, M, M), empty without a transition."""

    @staticmethod
    def forward(
        ctx,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        anchors_q: Tensor,
        anchors_k: Tensor,
        mask: Optional[Tensor],
        has_transition: bool,
    ) -> Tuple[Tensor, Tensor]:
        state, transition, log_mass = _state(q, k, v, anchors_q, anchors_k, mask, has_transition)
        ctx.save_for_backward(q, k, v, anchors_q, anchors_k, mask, state, transition, log_mass)
        return state, transition

    @staticmethod
    @first_derivative_only
    def backward(ctx, d_state: Tensor, d_transition: Tensor) -> Tuple[Optional[Tensor], ...]:
        q, k, v, anchors_q, anchors_k, mask, state, transition, log_mass = ctx.saved_tensors
        dtype, has_transition = anchors_q.dtype, transition.numel() > 0
        dq = torch.empty_like(q) if has_transition else None
        dk, dv = torch.empty_like(k), torch.empty_like(v)
        d_anchors_q = state.new_zeros(*state.shape[:-1], q.shape[-1])
        d_anchors_k: Any = torch.zeros_like(d_anchors_q) if has_transition else None  # as dq
        with no_autocast(q):
            # The sum that the gradient of the token softmax subtracts, in closed form.
            delta = (d_state * state).sum(-1, keepdim=True)
            if has_transition:
                delta = delta + (d_transition * transition).sum(-1, keepdim=True)
            for chunk in token_chunks(q, anchors_q.shape[-2]):
                keys = chunk_of(k, chunk, dtype)
                weights = (anchors_q @ keys.transpose(-2, -1)).sub_(log_mass).exp_()
                if mask is not None:
                    weights.masked_fill_(mask[:, None, None, chunk], 0)
                d_weights = d_state @ chunk_of(v, chunk, dtype).transpose(-2, -1)
                if dq is not None:
                    queries = chunk_of(q, chunk, dtype)
                    weights_q = _anchor_softmax(queries, anchors_k)
                    d_weights += d_transition @ weights_q.transpose(-2, -1)
                    d_logits = _softmax_backward(
                        weights_q, weights.transpose(-2, -1) @ d_transition
                    )
                    dq[:, :, chunk] = d_logits @ anchors_k
                    d_anchors_k += d_logits.transpose(-2, -1) @ queries
                dv[:, :, chunk] = weights.transpose(-2, -1) @ d_state
                d_logits = weights.mul_(d_weights.sub_(delta))
                dk[:, :, chunk] = d_logits.transpose(-2, -1) @ anchors_q
                d_anchors_q += d_logits @ keys
        d_anchors_k = None if d_anchors_k is None else _sum_images(d_anchors_k, anchors_k)
        return dq, dk, dv, _sum_images(d_anchors_q, anchors_q), d_anchors_k, None, None


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
        dq, dx = torch.empty_like(q), torch.zeros_like(x)
        d_anchors = x.new_zeros(*x.shape[:-1], q.shape[-1])
        with no_autocast(q):
            for chunk in token_chunks(q, anchors_k.shape[-2]):
                queries, grads = chunk_of(q, chunk, x.dtype), chunk_of(grad, chunk, x.dtype)
                weights_q = _anchor_softmax(queries, anchors_k)
                dx += weights_q.transpose(-2, -1) @ grads
                d_logits = _softmax_backward(weights_q, grads @ x.transpose(-2, -1))
                dq[:, :, chunk] = d_logits @ anchors_k
                d_anchors += d_logits.transpose(-2, -1) @ queries
        return dq, _sum_images(d_anchors, anchors_k), dx


def _state(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    anchors_q: Tensor,
    anchors_k: Tensor,
    mask: Optional[Tensor],
    has_transition: bool,
) -> Tuple[Tensor, Tensor, Tensor]:
    """Return ``G_K v``, ``G_K G_Q`` and the log of each token softmax's sum, (B, heads, M, 1)."""
    dtype = anchors_q.dtype
    softmax, state, transition = OnlineSoftmax(), 0, 0
    for chunk in token_chunks(q, anchors_q.shape[-2]):
        logits = anchors_q @ chunk_of(k, chunk, dtype).transpose(-2, -1)  # [B, H, M, n]
        weights, fade = softmax.add(logits, None if mask is None else mask[:, None, None, chunk])
        state = state * fade + weights @ chunk_of(v, chunk, dtype)
        if has_transition:
            transition = transition * fade + weights @ _anchor_softmax(
                chunk_of(q, chunk, dtype), anchors_k
            )
    share = softmax.share()
    transition = transition * share if has_transition else anchors_q.new_empty(0)
    return state * share, transition, softmax.log_mass()


def _output(q: Tensor, anchors_k: Tensor, x: Tensor) -> Tensor:
    """Return ``G_Q x``, (B, heads, N, d_v)."""
    chunks = token_chunks(q, anchors_k.shape[-2])
    if len(chunks) == 1:
        return (_anchor_softmax(q.to(x.dtype), anchors_k) @ x).to(q.dtype)
    out = token_major(q, x.shape[-1])
    for chunk in chunks:
        out[:, :, chunk] = _anchor_softmax(chunk_of(q, chunk, x.dtype), anchors_k) @ x
    return out


def _anchor_softmax(q: Tensor, anchors_k: Tensor) -> Tensor:
    """Return the softmax over the anchors, (B, heads, n, M)."""
    return (q @ anchors_k.transpose(-2, -1)).softmax(-1)


def _softmax_backward(weights: Tensor, grad: Tensor) -> Tensor:
    """Return the gradient of the logits of a softmax over the last axis."""
    return torch.mul(weights, grad - (weights * grad).sum(-1, keepdim=True))


def _sum_images(grad: Tensor, anchors: Tensor) -> Tensor:
    """Sum a gradient over the images where they share the anchors."""
    return grad.sum(0) if anchors.dim() == 3 else grad
