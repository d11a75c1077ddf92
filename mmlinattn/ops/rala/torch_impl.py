"""RALA in O(N d^2): one pass for the query mean, one for the keys, one for the output."""

from typing import Optional, Tuple

from torch import Tensor

from ..common.numerics import accumulation_dtype
from ..linear.torch_impl import linear_portable
from .options import RalaOptions


def rala_portable(q: Tensor, k: Tensor, v: Tensor, options: RalaOptions) -> Tensor:
    """See :func:`mmlinattn.ops.rala_attention`."""
    weights = options.token_weights
    if weights is not None:
        # Dividing the weights by N once replaces the division of both sums by N: they sum to 1.
        weights = weights.to(accumulation_dtype(q.dtype))
        weights = _shares(weights, options.key_padding_mask, q.shape)
    return linear_portable(q, k, v, options.of_family(weights))


def _shares(weights: Tensor, mask: Optional[Tensor], shape: Tuple[int, ...]) -> Tensor:
    """Weights that are to sum to N, divided by N and without padding, (B, heads, N)."""
    weights = weights.expand(shape[:3])
    if mask is None:
        return weights / shape[2]
    count = (~mask).sum(-1)[:, None, None].clamp(min=1)
    return weights.masked_fill(mask[:, None], 0) / count
