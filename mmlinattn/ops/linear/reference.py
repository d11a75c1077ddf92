"""Definitions of linear attention, RALA and MALA, N x N: short, slow, exact in float64."""

from typing import Any, Tuple

import torch
from torch import Tensor

from ..common.feature_maps import FEATURE_MAPS
from ..common.numerics import zero_padding
from ..common.rotary import rotated
from .options import LinearOptions


def linear_reference(q: Tensor, k: Tensor, v: Tensor, options: LinearOptions) -> Tensor:
    """Compute :func:`mmlinattn.ops.linear_attention`, or RALA, by its definition."""
    q, k = _features(q, k, options)
    eps: Any = options.eps
    if options.mean_normaliser or options.kind == 'rala':
        eps = eps * _real_tokens(k, options)[1][..., None]  # of a mean, which is a sum here
    normaliser = (q @ k.transpose(-2, -1)).sum(-1, keepdim=True) + eps
    q, k = rotated(options.rotary, q, k)
    kernel = q @ k.transpose(-2, -1)  # [B, H, N, N]
    return kernel @ v / normaliser


def kv_sum(q: Tensor, k: Tensor, v: Tensor, options: LinearOptions) -> Tensor:
    """Compute the sum over the keys that linear attention, RALA or MALA multiplies with a query.

    ``S = sum_j a_j rot(phi(k_j)) v_j^T``, where a_j is RALA's weight, else 1, and 0 for padding.
    The scale is that of the equation in :func:`mmlinattn.ops.linear_attention`: a sum, no mean.
    Queries, which matter for RALA, and keys are (B, heads, N, m), S is (B, heads, m, d_v).
    """
    _, k = _features(q, k, options)
    return rotated(options.rotary, k)[0].transpose(-2, -1) @ v


def _features(q: Tensor, k: Tensor, options: LinearOptions) -> Tuple[Tensor, Tensor]:
    """Return phi(q) and ``a_j phi(k_j)``, where a_j is RALA's weight, else 1, and 0 for padding."""
    phi = FEATURE_MAPS[options.feature_map]
    q, k = phi(q), zero_padding(phi(k), options.key_padding_mask)
    return q, k * _rala_weights(q, k, options)[..., None] if options.kind == 'rala' else k


def _real_tokens(k: Tensor, options: LinearOptions) -> Tuple[Tensor, Tensor]:
    """Return which keys are no padding, bool (B, 1, N), and their number (B, 1, 1), at least 1."""
    mask = options.key_padding_mask
    keep = k.new_ones(k.shape[0], 1, k.shape[2], dtype=torch.bool)
    keep = keep if mask is None else ~mask[:, None]
    return keep, keep.sum(-1, keepdim=True).clamp(min=1).to(k.dtype)


def _rala_weights(q: Tensor, k: Tensor, options: LinearOptions) -> Tensor:
    """Return ``a_j`` of RALA, 0 for padding, (B, heads, N), from the features q and k."""
    keep, count = _real_tokens(k, options)
    if options.token_weights is not None:
        return options.token_weights * keep
    mean_q = q.mean(2)  # [B, H, d]
    if options.query_mask() is not None:
        mean_q = (q * keep[..., None]).sum(2) / count
    scores = torch.einsum('bhd,bhnd->bhn', mean_q, k) * k.shape[-1] ** -0.5
    scores = scores.masked_fill(~keep, torch.finfo(scores.dtype).min)
    exponential = (scores - scores.amax(-1, keepdim=True)).exp() * keep
    total = exponential.sum(-1, keepdim=True)
    return count * exponential / total.where(total > 0, 1)


def mala_reference(q: Tensor, k: Tensor, v: Tensor, options: LinearOptions) -> Tensor:
    """Compute :func:`mmlinattn.ops.mala_attention` by its definition."""
    phi = FEATURE_MAPS[options.feature_map]
    q, k = phi(q) * q.shape[-1] ** -0.5, phi(k)
    keep, count = _real_tokens(k, options)
    mean = (keep / count)[:, None]  # [B, 1, 1, N]
    z = (q @ k.transpose(-2, -1) * mean).sum(-1, keepdim=True)
    q, k = rotated(options.rotary, q, k)
    kernel = q @ k.transpose(-2, -1)  # [B, H, N, N]
    return ((1 + 1 / (z + options.eps)) * kernel - z) * mean @ v
