"""RALA in O(N d^2): one pass for the query mean, one for the keys, one for the output."""

from typing import Optional

import torch
from torch import Tensor

from ..feature_maps import feature_map as get_feature_map
from ..numerics import accumulation_dtype, masked_softmax, no_autocast
from ..rotary import Rotary, apply_rotary


def rala_portable(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rotary: Optional[Rotary] = None,
    key_padding_mask: Optional[Tensor] = None,
    eps: float = 1e-6,
    feature_map: str = 'elu+1',
    token_weights: Optional[Tensor] = None,
) -> Tensor:
    """See :func:`mmlinattn.ops.rala_attention`."""
    out_dtype, dim = q.dtype, q.shape[-1]
    dtype = accumulation_dtype(out_dtype)
    phi = get_feature_map(feature_map)
    # Autocast would push the sums and the normaliser back into half precision.
    with no_autocast(q):
        q, k, v = phi(q.to(dtype)), phi(k.to(dtype)), v.to(dtype)
        if rotary is not None:
            rotary = (rotary[0].to(dtype), rotary[1].to(dtype))
        mask = None if key_padding_mask is None else key_padding_mask[:, None]  # [B, 1, N]
        # Dividing the weights by N once replaces the division of both sums by N: they sum to 1.
        if token_weights is None:
            weights = masked_softmax(_scores(q, k, mask) * dim**-0.5, mask)  # [B, H, N]
        else:
            weights = _given_weights(token_weights.to(dtype), mask, q.shape)
        mean_k = (weights[..., None, :] @ k).transpose(-2, -1)  # [B, H, d, 1]
        denominator = q @ mean_k + eps  # [B, H, N, 1]
        # Weighted before it is rotated: neither product has to be kept for the backward pass.
        state = apply_rotary(k * weights[..., None], rotary).transpose(-2, -1) @ v  # [B, H, d, d]
        return (apply_rotary(q, rotary) @ state / denominator).to(out_dtype)


def _scores(q: Tensor, k: Tensor, mask: Optional[Tensor]) -> Tensor:
    """Similarity of each key with the mean query, (B, H, N)."""
    if mask is None:
        mean_q = q.mean(2, keepdim=True)
    else:
        count = (~mask).sum(-1, keepdim=True).clamp(min=1)[..., None]
        mean_q = q.masked_fill(mask[..., None], 0).sum(2, keepdim=True) / count
    return (k @ mean_q.transpose(-2, -1)).squeeze(-1)


def _given_weights(weights: Tensor, mask: Optional[Tensor], shape: torch.Size) -> Tensor:
    """Weights that are to sum to N, divided by N and without padding, (B, H, N)."""
    weights = weights.expand(shape[:3])
    if mask is None:
        return weights / shape[2]
    count = (~mask).sum(-1, keepdim=True).clamp(min=1)
    return weights.masked_fill(mask, 0) / count
