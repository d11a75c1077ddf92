"""Ripple attention key by key: O(N R^2 (m + d)) time, any groups.

The naive algorithm of the paper, which sums over the vicinal groups without summed-area tables. The
last group is computed as the whole map minus the others. A reference for measurements:
:mod:`.tile` does the same work in dense products.
"""

import torch.nn.functional as F
from torch import Tensor

from ..common.numerics import accumulation_dtype, no_autocast, zero_padding
from .groups import drop_empty_last, group_radii
from .options import RippleOptions
from .weights import finished_weights


def ripple_naive(
    q: Tensor, k: Tensor, v: Tensor, weights: Tensor, options: RippleOptions
) -> Tensor:
    """Compute :func:`mmlinattn.ops.ripple_attention`."""
    out_dtype, batch_heads = v.dtype, q.shape[:2]
    hw_shape, mask = options.hw_shape, options.key_padding_mask
    weights = finished_weights(weights, options.stick)
    dtype = accumulation_dtype(out_dtype)
    # A square that covers the map is the map: its weight joins the last one.
    radii = group_radii(weights.shape[-1] - 1, options.groups)
    radii = [r for r in radii if r < max(hw_shape) - 1]
    reach = radii[-1] if radii else -1
    with no_autocast(q):
        k = zero_padding(k.to(dtype), mask)
        v1 = F.pad(v.to(dtype), (0, 1), value=1.0)  # the normaliser is the attention to ones
        weights = drop_empty_last(
            weights[..., : len(radii) + 1].to(dtype), hw_shape, reach + 1, mask
        )
        q, k, v1, weights = (
            x.flatten(0, 1).unflatten(1, hw_shape) for x in (q.to(dtype), k, v1, weights)
        )  # [B * heads, H, W, channels]
        last = weights[..., -1:]
        state = k.flatten(1, 2).transpose(1, 2) @ v1.flatten(1, 2)  # [B * heads, m, d + 1]
        total = ((last * q).flatten(1, 2) @ state).view(v1.shape)
        near = weights - last
        keys, values = (F.pad(x, (0, 0, *(max(reach, 0),) * 4)) for x in (k, v1))
        height, width = hw_shape
        for y in range(-reach, reach + 1):
            for x in range(-reach, reach + 1):
                group = sum(max(abs(x), abs(y)) > radius for radius in radii)
                place = (slice(None), slice(reach + y, reach + y + height))
                place = (*place, slice(reach + x, reach + x + width))
                scores = near[..., group, None] * (q * keys[place]).sum(-1, keepdim=True)
                total = total + scores * values[place]
        out = total[..., :-1] / (total[..., -1:] + options.eps)
        return out.flatten(1, 2).unflatten(0, batch_heads).to(out_dtype)
