"""Additive attention in torch, by matrix products: ``w_k . (query * k_i) = (w_k * query) . k_i``.

Large maps are processed in chunks of tokens, whose scores the backward pass recomputes. On an
accelerator half inputs stay half, see :func:`..common.numerics.product`, without copies.
"""

import math
from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from ..common.first_derivative import first_derivative_only
from ..common.numerics import (
    Half,
    Mask,
    accumulation_dtype,
    chunk_of,
    factor_dtype,
    fits_cache,
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


def additive_torch(
    q: Tensor, k: Tensor, v: Tensor, w_q: Tensor, w_k: Tensor, q_mask: Mask, k_mask: Mask
) -> Tensor:
    """Compute :func:`mmlinattn.ops.additive_attention`."""
    dtype, tracing = accumulation_dtype(q.dtype), is_tracing()
    with no_autocast(q, tracing):
        w_q, w_k = w_q.to(dtype)[None, :, None], w_k.to(dtype)[None, :, None]  # [1, H, 1, d]
        if tracing or (factor_dtype(q) is None and fits_cache(q) and fits_cache(k)):
            query = _mean(q, w_q, q_mask)
            return (query * _mean(k, w_k * query, k_mask) * v).to(v.dtype)
        chunked = needs_gradient(q, k, v, w_q, w_k)
        pool, scale = (_Pool.apply, _Scale.apply) if chunked else (_pool, _scale)
        query, _ = pool(q, w_q, q_mask)
        key, _ = pool(k, w_k * query, k_mask)
        return scale(v, query * key)


def _mean(x: Tensor, weight: Tensor, mask: Mask) -> Tensor:
    """Return the mean of :func:`_pool` of a single chunk."""
    tokens = x.to(weight.dtype)
    padding = None if mask is None else mask[:, None, None]
    return masked_softmax(_scores(tokens, weight), padding) @ tokens


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, mask: Mask) -> Tuple[Tensor, Tensor]:
        pooled, log_mass = _pool(x, weight, mask)
        ctx.save_for_backward(x, weight, mask, pooled, log_mass)
        ctx.mark_non_differentiable(log_mass)
        return pooled, log_mass

    @staticmethod
    @first_derivative_only
    def backward(ctx, grad: Tensor, _) -> Tuple[Optional[Tensor], ...]:
        x, weight, mask, pooled, log_mass = ctx.saved_tensors
        half, scale = factor_dtype(x), x.shape[-1] ** -0.5
        dx: Any = None
        d_weight = torch.zeros_like(pooled)
        with no_autocast(x, False):
            if half is not None:  # shares of 1 / N and sums of N gradients would leave float16
                root = 2.0 ** (x.shape[2].bit_length() // 2)
                grad, log_mass = grad / root, log_mass - math.log(root)
            # The sum that the softmax gradient subtracts, in closed form.
            delta = (grad * pooled).sum(-1, keepdim=True)
            # Both products with the tokens at once, and both outer products.
            both = torch.cat([weight.expand_as(grad), grad], -2)  # [B, H, 2, d]
            for chunk in token_chunks(x, _width(half), False):
                tokens = chunk_of(x, chunk, half or weight.dtype)
                scores, d_shares = product(both, tokens.mT, half).split(1, -2)  # [B, H, 1, n]
                shares = (scores * scale - log_mass).exp_()
                if mask is not None:
                    shares = shares.masked_fill(mask[:, None, None, chunk], 0)
                d_scores = scale * shares * (d_shares - delta)
                left = torch.cat([d_scores, shares], -2).mT
                dx = put_chunk(dx, chunk, product(left, both, half, True), x)
                d_weight += product(d_scores, tokens, half)
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
        dx, half = torch.empty_like(x), factor_dtype(x)
        d_factor = torch.zeros_like(factor)
        for chunk in token_chunks(x, _width(half), False):
            tokens, part = chunk_of(x, chunk, x.dtype), chunk_of(grad, chunk, grad.dtype)
            torch.mul(part, factor, out=chunk_of(dx, chunk, dx.dtype))
            if half is None:
                d_factor += (part.to(factor.dtype) * tokens).sum(2, keepdim=True)
            else:  # its diagonal alone would need a product of all elements in float32
                d_factor += product(part.mT, tokens, half).diagonal(0, -2, -1).unsqueeze(-2)
        return dx, d_factor


def _scale(x: Tensor, factor: Tensor) -> Tensor:
    """Return ``factor * x`` in the dtype of x; x (B, heads, N, d), factor (B, heads, 1, d)."""
    out = token_major(x)
    for chunk in token_chunks(x, _width(factor_dtype(x))):
        torch.mul(chunk_of(x, chunk, x.dtype), factor, out=chunk_of(out, chunk, x.dtype))
    return out


def _pool(x: Tensor, weight: Tensor, mask: Mask) -> Tuple[Tensor, Tensor]:
    """Average x (B, heads, N, d) by a softmax over the tokens of ``weight . x``.

    Returns the mean, (B, heads, 1, d), and the log of the sum of the weights, (B, heads, 1, 1).
    """
    half, softmax = factor_dtype(x), OnlineSoftmax()
    pooled: Any = None  # a tensor after the first chunk
    for chunk in token_chunks(x, _width(half)):
        tokens = chunk_of(x, chunk, half or weight.dtype)
        padding = None if mask is None else mask[:, None, None, chunk]
        shares, fade = softmax.add(_scores(tokens, weight, half), padding)
        part = product(shares, tokens, half)
        pooled = part if fade is None else pooled * fade + part
    return pooled * softmax.share(), softmax.log_mass()


def _scores(tokens: Tensor, weight: Tensor, half: Half = None) -> Tensor:
    """Return the scores of a chunk, (B, heads, 1, n)."""
    return product(weight, tokens.transpose(-2, -1), half) * tokens.shape[-1] ** -0.5


def _width(half: Half) -> Optional[int]:
    """Return the channels of intermediate tensors; with half factors, scores and shares alone."""
    return None if half is None else 4
