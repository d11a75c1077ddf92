"""RALA by its definition: token by token, N x N. Slow, short, exact in float64."""

from typing import Optional

import torch
from torch import Tensor

from ..feature_maps import feature_map as get_feature_map
from ..rotary import Rotary, apply_rotary


def rala_reference(
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
    phi = get_feature_map(feature_map)
    q, k = phi(q), phi(k)
    batch, _, num_tokens, dim = q.shape
    keep = torch.ones(batch, 1, num_tokens, dtype=torch.bool, device=q.device)
    if key_padding_mask is not None:
        keep = ~key_padding_mask[:, None]  # [B, 1, N]
    count = keep.sum(-1, keepdim=True).clamp(min=1).to(q.dtype)  # [B, 1, 1]

    if token_weights is None:
        mean_q = (q * keep[..., None]).sum(2) / count  # [B, H, d]
        scores = torch.einsum('bhd,bhnd->bhn', mean_q, k) * dim**-0.5
        scores = scores.masked_fill(~keep, torch.finfo(scores.dtype).min)
        exponential = (scores - scores.amax(-1, keepdim=True)).exp() * keep
        total = exponential.sum(-1, keepdim=True)
        token_weights = count * exponential / total.where(total > 0, 1)
    k = k * (token_weights * keep)[..., None]

    denominator = (q @ k.transpose(-2, -1)).sum(-1, keepdim=True) / count[..., None] + eps
    kernel = apply_rotary(q, rotary) @ apply_rotary(k, rotary).transpose(-2, -1)  # [B, H, N, N]
    return kernel @ v / count[..., None] / denominator
