"""Definitions of linear attention, RALA and MALA, N x N: short, slow, exact in float64."""

import torch
from torch import Tensor

from ..common.feature_maps import FEATURE_MAPS
from ..common.rotary import apply_rotary
from .options import LinearOptions


def linear_reference(q: Tensor, k: Tensor, v: Tensor, options: LinearOptions) -> Tensor:
    """Compute :func:`mmlinattn.ops.linear_attention` by its definition."""
    phi = FEATURE_MAPS[options.feature_map]
    q, k = phi(q), phi(k)
    if options.key_padding_mask is not None:
        k = k.masked_fill(options.key_padding_mask[:, None, :, None], 0)
    eps = options.eps
    if options.mean_normaliser:
        mask = options.key_padding_mask
        keep = k.new_ones(k.shape[0], k.shape[2]) if mask is None else (~mask).to(q.dtype)
        eps = eps * keep.sum(-1).clamp(min=1)[:, None, None, None]
    normaliser = (q @ k.transpose(-2, -1)).sum(-1, keepdim=True) + eps
    q, k = apply_rotary(q, options.rotary), apply_rotary(k, options.rotary)
    kernel = q @ k.transpose(-2, -1)  # [B, H, N, N]
    return kernel @ v / normaliser


def rala_reference(q: Tensor, k: Tensor, v: Tensor, options: LinearOptions) -> Tensor:
    """Compute :func:`mmlinattn.ops.rala_attention` by its definition, token by token."""
    phi = FEATURE_MAPS[options.feature_map]
    q, k = phi(q), phi(k)
    batch, _, num_tokens, dim = k.shape
    keep = torch.ones(batch, 1, num_tokens, dtype=torch.bool, device=q.device)
    if options.key_padding_mask is not None:
        keep = ~options.key_padding_mask[:, None]  # [B, 1, N]
    count = keep.sum(-1, keepdim=True).clamp(min=1).to(q.dtype)  # [B, 1, 1]

    token_weights = options.token_weights
    if token_weights is None:
        mean_q = q.mean(2)  # [B, H, d]
        if options.query_mask() is not None:
            mean_q = (q * keep[..., None]).sum(2) / count
        scores = torch.einsum('bhd,bhnd->bhn', mean_q, k) * dim**-0.5
        scores = scores.masked_fill(~keep, torch.finfo(scores.dtype).min)
        exponential = (scores - scores.amax(-1, keepdim=True)).exp() * keep
        total = exponential.sum(-1, keepdim=True)
        token_weights = count * exponential / total.where(total > 0, 1)
    k = k * (token_weights * keep)[..., None]

    denominator = (q @ k.transpose(-2, -1)).sum(-1, keepdim=True) / count[..., None] + options.eps
    q, k = apply_rotary(q, options.rotary), apply_rotary(k, options.rotary)
    kernel = q @ k.transpose(-2, -1)  # [B, H, N, N]
    return kernel @ v / count[..., None] / denominator


def mala_reference(q: Tensor, k: Tensor, v: Tensor, options: LinearOptions) -> Tensor:
    """Compute :func:`mmlinattn.ops.mala_attention` by its definition."""
    phi = FEATURE_MAPS[options.feature_map]
    q, k = phi(q) * q.shape[-1] ** -0.5, phi(k)
    keep = torch.ones(k.shape[0], 1, 1, k.shape[2], dtype=torch.bool, device=q.device)
    if options.key_padding_mask is not None:
        keep = ~options.key_padding_mask[:, None, None]
    mean = keep / keep.sum(-1, keepdim=True).clamp(min=1).to(q.dtype)  # [B, 1, 1, N]
    z = (q @ k.transpose(-2, -1) * mean).sum(-1, keepdim=True)
    q, k = apply_rotary(q, options.rotary), apply_rotary(k, options.rotary)
    kernel = q @ k.transpose(-2, -1)  # [B, H, N, N]
    return ((1 + 1 / (z + options.eps)) * kernel - z) * mean @ v
