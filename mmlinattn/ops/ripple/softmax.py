"""Softmax ripple attention: torch's SDPA with the logarithms of the spatial weights as bias."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ..common.numerics import accumulation_dtype, is_exporting
from .groups import RippleOptions, weight_pairs


def softmax_ripple(
    q: Tensor, k: Tensor, v: Tensor, weights: Tensor, options: RippleOptions
) -> Tensor:
    """Compute :func:`mmlinattn.ops.softmax_ripple_attention`; O(N^2) time and memory."""
    weights = weights.to(accumulation_dtype(weights.dtype))
    # The clamp keeps the gradient of a weight of 0 finite.
    logs = weights.clamp(min=torch.finfo(weights.dtype).tiny).log()
    logs = logs.masked_fill(weights == 0, float('-inf'))
    bias = weight_pairs(logs, options, float('-inf'))
    # SDPA is undefined for rows without a key: attend everywhere there, then set them to 0.
    empty = bias.isneginf().all(-1, keepdim=True)
    bias = bias.masked_fill(empty, 0).to(q.dtype)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias).masked_fill(empty, 0)
    return out.clone(memory_format=torch.contiguous_format) if is_exporting() else out
