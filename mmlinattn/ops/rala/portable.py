"""RALA in O(N d^2): one pass for the query mean, one for the keys, one for the output."""

from typing import Optional, Tuple

from torch import Tensor

from ..kernelised import kernelised_portable
from ..numerics import accumulation_dtype
from ..rotary import Rotary


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
    # Dividing the weights by N once replaces the division of both sums by N: they sum to 1.
    weights = None
    if token_weights is not None:
        dtype = accumulation_dtype(q.dtype)
        weights = _shares(token_weights.to(dtype), key_padding_mask, q.shape)
    scored = token_weights is None
    return kernelised_portable(q, k, v, rotary, key_padding_mask, eps, feature_map, weights, scored)


def _shares(weights: Tensor, mask: Optional[Tensor], shape: Tuple[int, ...]) -> Tensor:
    """Weights that are to sum to N, divided by N and without padding, (B, heads, N)."""
    weights = weights.expand(shape[:3])
    if mask is None:
        return weights / shape[2]
    count = (~mask).sum(-1)[:, None, None].clamp(min=1)
    return weights.masked_fill(mask[:, None], 0) / count
