"""The random walk between anchors, in chunks of tokens: O(N d) memory, nothing N x M is kept.

Two autograd functions: the sums over tokens that the anchors take (the token softmax online), and
what each token reads from the anchors. Both compute their softmax again in the backward pass. What
happens between them is M x M and torch's own to differentiate.
"""

from typing import Optional, Tuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..common.numerics import (
    accumulation_dtype,
    fits_cache,
    needs_gradient,
    no_autocast,
    one_graph,
    token_chunks,
    token_major,
)
from ..common.online_softmax import OnlineSoftmax
from .options import WalkOptions
from .anchor_solver import walk_on


def random_walk_portable(
    q: Tensor, k: Tensor, v: Tensor, anchors_q: Tensor, anchors_k: Tensor, options: WalkOptions
) -> Tensor:
    """See :func:`mmlinattn.ops.random_walk_attention`."""
    # Half precision would lose what small decays add, and logits of 60 their first decimal.
    dtype = accumulation_dtype(q.dtype)
    anchors_q, anchors_k = anchors_q.to(dtype), anchors_k.to(dtype)
    tokens = (q, k, v, anchors_q, anchors_k, options.key_padding_mask, options.steps != 1)
    with no_autocast(q):
        # What is in one piece is for autograd.
        one_piece = one_graph() or fits_cache(q, anchors_q.shape[-2])
        if one_piece or not needs_gradient(*tokens[:5]):
            state, walk, _ = _sum_up(*tokens)
            return _read_out(q, anchors_k, walk_on(state, walk, options))
        state, walk = WalkState.apply(*tokens)
        return WalkReadout.apply(q, anchors_k, walk_on(state, walk, options))


def gather(k: Tensor, v: Tensor, anchors: Tensor, mask: Optional[Tensor]) -> Tensor:
    """``G_K v`` alone, (B, heads, M, d_v), in the type of the anchors."""
    tokens = (k, k, v, anchors, anchors, mask, False)
    followed = not one_graph() and needs_gradient(k, v, anchors)
    return (WalkState.apply if followed else _sum_up)(*tokens)[0]


def read(q: Tensor, anchors: Tensor, x: Tensor) -> Tensor:
    """``G_Q x``, (B, heads, N, d_v), in the type of q."""
    followed = not one_graph() and needs_gradient(q, anchors, x)
    return (WalkReadout.apply if followed else _read_out)(q, anchors, x)


class WalkState(torch.autograd.Function):
    """``G_K v`` (B, heads, M, d_v) and ``G_K G_Q`` (B, heads, M, M), or an empty tensor for it."""

    @staticmethod
    def forward(
        ctx,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        anchors_q: Tensor,
        anchors_k: Tensor,
        mask: Optional[Tensor],
        has_walk: bool,
    ) -> Tuple[Tensor, Tensor]:
        state, walk, log_mass = _sum_up(q, k, v, anchors_q, anchors_k, mask, has_walk)
        ctx.save_for_backward(q, k, v, anchors_q, anchors_k, mask, state, walk, log_mass)
        return state, walk

    @staticmethod
    @once_differentiable
    def backward(ctx, d_state: Tensor, d_walk: Tensor) -> Tuple[Optional[Tensor], ...]:
        q, k, v, anchors_q, anchors_k, mask, state, walk, log_mass = ctx.saved_tensors
        dtype, has_walk = anchors_q.dtype, walk.numel() > 0
        dq = torch.empty_like(q) if has_walk else None
        dk, dv = torch.empty_like(k), torch.empty_like(v)
        d_anchors_q = state.new_zeros(*state.shape[:-1], q.shape[-1])
        d_anchors_k = torch.zeros_like(d_anchors_q) if has_walk else None
        with no_autocast(q):
            # What the token softmax subtracts, in closed form.
            delta = (d_state * state).sum(-1, keepdim=True)
            if has_walk:
                delta = delta + (d_walk * walk).sum(-1, keepdim=True)
            for chunk in token_chunks(q, anchors_q.shape[-2]):
                keys = k[:, :, chunk].to(dtype)
                weights = (anchors_q @ keys.transpose(-2, -1)).sub_(log_mass).exp_()
                if mask is not None:
                    weights.masked_fill_(mask[:, None, None, chunk], 0)
                d_weights = d_state @ v[:, :, chunk].to(dtype).transpose(-2, -1)
                if dq is not None:
                    queries = q[:, :, chunk].to(dtype)
                    looked_up = _looked_up(queries, anchors_k)
                    d_weights += d_walk @ looked_up.transpose(-2, -1)
                    d_logits = _softmax_backward(looked_up, weights.transpose(-2, -1) @ d_walk)
                    dq[:, :, chunk] = d_logits @ anchors_k
                    d_anchors_k += d_logits.transpose(-2, -1) @ queries
                dv[:, :, chunk] = weights.transpose(-2, -1) @ d_state
                d_logits = weights.mul_(d_weights.sub_(delta))
                dk[:, :, chunk] = d_logits.transpose(-2, -1) @ anchors_q
                d_anchors_q += d_logits @ keys
        d_anchors_k = None if d_anchors_k is None else _of_all_images(d_anchors_k, anchors_k)
        return dq, dk, dv, _of_all_images(d_anchors_q, anchors_q), d_anchors_k, None, None


class WalkReadout(torch.autograd.Function):
    """``G_Q x``, (B, heads, N, d_v), for x (B, heads, M, d_v), in the type of q."""

    @staticmethod
    def forward(ctx, q: Tensor, anchors_k: Tensor, x: Tensor) -> Tensor:
        ctx.save_for_backward(q, anchors_k, x)
        return _read_out(q, anchors_k, x)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
        q, anchors_k, x = ctx.saved_tensors
        dq, dx = torch.empty_like(q), torch.zeros_like(x)
        d_anchors = x.new_zeros(*x.shape[:-1], q.shape[-1])
        with no_autocast(q):
            for chunk in token_chunks(q, anchors_k.shape[-2]):
                queries, grads = q[:, :, chunk].to(x.dtype), grad[:, :, chunk].to(x.dtype)
                looked_up = _looked_up(queries, anchors_k)
                dx += looked_up.transpose(-2, -1) @ grads
                d_logits = _softmax_backward(looked_up, grads @ x.transpose(-2, -1))
                dq[:, :, chunk] = d_logits @ anchors_k
                d_anchors += d_logits.transpose(-2, -1) @ queries
        return dq, _of_all_images(d_anchors, anchors_k), dx


def _sum_up(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    anchors_q: Tensor,
    anchors_k: Tensor,
    mask: Optional[Tensor],
    has_walk: bool,
) -> Tuple[Tensor, Tensor, Tensor]:
    """``G_K v``, ``G_K G_Q`` and the log of the sum of each token softmax, (B, heads, M, 1)."""
    dtype = anchors_q.dtype
    softmax, state, walk = OnlineSoftmax(), 0, 0
    for chunk in token_chunks(q, anchors_q.shape[-2]):
        logits = anchors_q @ k[:, :, chunk].to(dtype).transpose(-2, -1)  # [B, H, M, n]
        weights, fade = softmax.add(logits, None if mask is None else mask[:, None, None, chunk])
        state = state * fade + weights @ v[:, :, chunk].to(dtype)
        if has_walk:
            walk = walk * fade + weights @ _looked_up(q[:, :, chunk].to(dtype), anchors_k)
    share = softmax.share()
    walk = walk * share if has_walk else anchors_q.new_empty(0)
    return state * share, walk, softmax.log_mass()


def _read_out(q: Tensor, anchors_k: Tensor, x: Tensor) -> Tensor:
    """``G_Q x``, (B, heads, N, d_v)."""
    chunks = token_chunks(q, anchors_k.shape[-2])
    if len(chunks) == 1:
        return (_looked_up(q.to(x.dtype), anchors_k) @ x).to(q.dtype)
    out = token_major(q, x.shape[-1])
    for chunk in chunks:
        out[:, :, chunk] = _looked_up(q[:, :, chunk].to(x.dtype), anchors_k) @ x
    return out


def _looked_up(q: Tensor, anchors_k: Tensor) -> Tensor:
    """Softmax over the anchors, (B, heads, n, M)."""
    return (q @ anchors_k.transpose(-2, -1)).softmax(-1)


def _softmax_backward(weights: Tensor, grad: Tensor) -> Tensor:
    """Gradient of the logits of a softmax over the last axis."""
    return torch.mul(weights, grad - (weights * grad).sum(-1, keepdim=True))


def _of_all_images(grad: Tensor, anchors: Tensor) -> Tensor:
    """The gradient of anchors, which all images may share."""
    return grad.sum(0) if anchors.dim() == 3 else grad
