"""Softmax ripple attention: torch's SDPA with the logarithms of the spatial weights as bias."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ..common.numerics import accumulation_dtype, is_exporting
from .groups import group_index, group_radii
from .options import RippleOptions
from .weights import finished_weights


def softmax_ripple(
    q: Tensor, k: Tensor, v: Tensor, weights: Tensor, options: RippleOptions
) -> Tensor:
    """Compute :func:`mmlinattn.ops.softmax_ripple_attention`; O(N^2) time and memory."""
    weights = finished_weights(weights, options.stick)
    weights = weights.to(accumulation_dtype(weights.dtype))
    # The clamp keeps the gradient of a weight of 0 finite.
    logs = weights.clamp(min=torch.finfo(weights.dtype).tiny).log()
    logs = logs.masked_fill(weights == 0, float('-inf'))
    radii = group_radii(weights.shape[-1] - 1, options.groups)
    index = group_index(options.hw_shape, radii, q.device)
    bias = logs.gather(-1, index.expand(*q.shape[:2], -1, -1))  # [B, H, N, N]
    if options.key_padding_mask is not None:
        bias = bias.masked_fill(options.key_padding_mask[:, None, None], float('-inf'))
    # SDPA is undefined for rows without a key: attend everywhere there, then set them to 0.
    empty = bias.isneginf().all(-1, keepdim=True)
    bias = bias.masked_fill(empty, 0).to(q.dtype)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias).masked_fill(empty, 0)
    return out.clone(memory_format=torch.contiguous_format) if is_exporting() else out


def softmax_ripple_reference(
    q: Tensor, k: Tensor, v: Tensor, weights: Tensor, options: RippleOptions
) -> Tensor:
    """Compute :func:`mmlinattn.ops.softmax_ripple_attention` by its definition."""
    weights = finished_weights(weights, options.stick)
    radii = group_radii(weights.shape[-1] - 1, options.groups)
    index = group_index(options.hw_shape, radii, q.device)
    spatial = weights.to(v.dtype).gather(-1, index.expand(*q.shape[:2], -1, -1))  # [B, H, N, N]
    logits = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    if options.key_padding_mask is not None:
        spatial = spatial.masked_fill(options.key_padding_mask[:, None, None], 0)
    # The largest logit of a key with weight cancels; it keeps the exponentials in range.
    largest = logits.masked_fill(spatial == 0, torch.finfo(logits.dtype).min)
    kernel = spatial * (logits - largest.amax(-1, keepdim=True)).clamp(max=0).exp()
    total = kernel.sum(-1, keepdim=True)
    return kernel @ v / total.where(total > 0, 1)
