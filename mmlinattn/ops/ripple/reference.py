"""Definitions of ripple attention, N x N: short, slow, exact in float64."""

import torch
from torch import Tensor

from .groups import RippleOptions, weight_pairs


def ripple_reference(
    q: Tensor, k: Tensor, v: Tensor, weights: Tensor, options: RippleOptions
) -> Tensor:
    """Compute :func:`mmlinattn.ops.ripple_attention` by its definition."""
    for name, features in (('q', q), ('k', k)):
        if (features < 0).any():
            raise ValueError(
                f'{name} must be feature-mapped and not negative, its minimum is '
                f'{features.min().item():.3g}'
            )
    kernel = weight_pairs(weights.to(v.dtype), options, 0) * (q @ k.transpose(-2, -1))
    return kernel @ v / (kernel.sum(-1, keepdim=True) + options.eps)


def softmax_ripple_reference(
    q: Tensor, k: Tensor, v: Tensor, weights: Tensor, options: RippleOptions
) -> Tensor:
    """Compute :func:`mmlinattn.ops.softmax_ripple_attention` by its definition."""
    spatial = weight_pairs(weights.to(v.dtype), options, 0)
    logits = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    # The largest logit of a key with weight cancels; it keeps the exponentials in range.
    largest = logits.masked_fill(spatial == 0, torch.finfo(logits.dtype).min)
    kernel = spatial * (logits - largest.amax(-1, keepdim=True)).clamp(max=0).exp()
    total = kernel.sum(-1, keepdim=True)
    return kernel @ v / total.where(total > 0, 1)
