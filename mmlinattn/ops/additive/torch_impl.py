"""Additive attention in torch, by matrix products: ``w_k . (query * k_i) = (w_k * query) . k_i``.

Large maps are processed in chunks of tokens, whose scores the backward pass recomputes.
"""

from typing import Optional, Tuple

import torch
from torch import Tensor

from ..common.first_derivative import first_derivative_only
from ..common.numerics import (
    accumulation_dtype,
    chunk_of,
    fits_cache,
    is_tracing,
    masked_softmax,
    needs_gradient,
    no_autocast,
    token_chunks,
    token_major,
)
from ..common.online_softmax import OnlineSoftmax


def additive_torch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w_q: Tensor,
    w_k: Tensor,
    q_mask: Optional[Tensor],
    k_mask: Optional[Tensor],
) -> Tensor:
    """Compute :func:`mmlinattn.ops.additive_attention`."""
    dtype = accumulation_dtype(q.dtype)
    with no_autocast(q):
        w_q, w_k = w_q.to(dtype)[None, :, None], w_k.to(dtype)[None, :, None]  # [1, H, 1, d]
        if is_tracing() or (fits_cache(q) and fits_cache(k)):
            query = _mean(q, w_q, q_mask)
            return (query * _mean(k, w_k * query, k_mask) * v).to(v.dtype)
        chunked = needs_gradient(q, k, v, w_q, w_k)
        pool, scale = (_Pool.apply, _Scale.apply) if chunked else (_pool, _scale)
        query, _ = pool(q, w_q, q_mask)
        key, _ = pool(k, w_k * query, k_mask)
        return scale(v, query * key)


def _mean(x: Tensor, weight: Tensor, mask: Optional[Tensor]) -> Tensor:
    """Return the mean of :func:`_pool` of a single chunk."""
    tokens = x.to(weight.dtype)
    padding = None if mask is None else mask[:, None, None]
    return masked_softmax(_scores(tokens, weight), padding) @ tokens


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, mask: Optional[Tensor]) -> Tuple[Tensor, Tensor]:
        pooled, log_mass = _pool(x, weight, mask)
        ctx.save_for_backward(x, weight, mask, pooled, log_mass)
        ctx.mark_non_differentiable(log_mass)
        return pooled, log_mass

    @staticmethod
    @first_derivative_only
    def backward(ctx, grad: Tensor, _) -> Tuple[Optional[Tensor], ...]:
        x, weight, mask, pooled, log_mass = ctx.saved_tensors
        scale = x.shape[-1] ** -0.5
        dx, d_weight = torch.empty_like(x), torch.zeros_like(pooled)
        with no_autocast(x):
            # The sum that the softmax gradient subtracts, in closed form.
            delta = (grad * pooled).sum(-1, keepdim=True)
            for chunk in token_chunks(x):
                tokens = chunk_of(x, chunk, weight.dtype)
                shares = (_scores(tokens, weight) - log_mass).exp()
                if mask is not None:
                    shares = shares.masked_fill(mask[:, None, None, chunk], 0)
                d_scores = scale * shares * (grad @ tokens.transpose(-2, -1) - delta)
                # Both outer products at once.
                left = torch.cat([shares, d_scores], -2).transpose(-2, -1)
                right = torch.cat([grad, weight.expand_as(grad)], -2)
                dx[:, :, chunk] = left @ right
                d_weight += d_scores @ tokens
        return dx, d_weight.sum_to_size(weight.shape), None


class _Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, factor: Tensor) -> Tensor:
        ctx.save_for_backward(x, factor)
        return _scale(x, factor)

    @staticmethod
    @first_derivative_only
    def backward(ctx, grad: Tensor) -> Tuple[Tensor, Tensor]:
        x, factor = ctx.saved_tensors
        dx, d_factor = torch.empty_like(x), torch.zeros_like(factor)
        for chunk in token_chunks(x):
            part = chunk_of(grad, chunk, factor.dtype)
            dx[:, :, chunk] = part * factor
            d_factor += (part * x[:, :, chunk]).sum(2, keepdim=True)
        return dx, d_factor


def _scale(x: Tensor, factor: Tensor) -> Tensor:
    """Return ``factor * x`` in the dtype of x; x (B, heads, N, d), factor (B, heads, 1, d)."""
    out = token_major(x)
    for chunk in token_chunks(x):
        out[:, :, chunk] = factor * x[:, :, chunk]
    return out


def _pool(x: Tensor, weight: Tensor, mask: Optional[Tensor]) -> Tuple[Tensor, Tensor]:
    """Average x (B, heads, N, d) by a softmax over the tokens of ``weight . x``.

    Args:
        weight: (B or 1, heads, 1, d).

    Returns:
        The mean, (B, heads, 1, d), and the log of the sum of the weights, (B, heads, 1, 1).
    """
    softmax, pooled = OnlineSoftmax(), 0
    for chunk in token_chunks(x):
        tokens = chunk_of(x, chunk, weight.dtype)
        padding = None if mask is None else mask[:, None, None, chunk]
        shares, fade = softmax.add(_scores(tokens, weight), padding)
        pooled = pooled * fade + shares @ tokens
    return pooled * softmax.share(), softmax.log_mass()


def _scores(tokens: Tensor, weight: Tensor) -> Tensor:
    """Return the scores of a chunk, (B, heads, 1, n)."""
    return (weight * tokens.shape[-1] ** -0.5) @ tokens.transpose(-2, -1)
