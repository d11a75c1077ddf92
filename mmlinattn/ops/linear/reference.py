"""Linear attention by its definition: N x N. Slow, short, exact in float64."""

from torch import Tensor

from ..common.feature_maps import FEATURE_MAPS
from ..common.rotary import apply_rotary
from .options import LinearOptions


def linear_reference(q: Tensor, k: Tensor, v: Tensor, options: LinearOptions) -> Tensor:
    """See :func:`mmlinattn.ops.linear_attention`."""
    phi = FEATURE_MAPS[options.feature_map]
    q, k = phi(q), phi(k)
    if options.key_padding_mask is not None:
        k = k.masked_fill(options.key_padding_mask[:, None, :, None], 0)
    normaliser = (q @ k.transpose(-2, -1)).sum(-1, keepdim=True) + options.eps
    q, k = apply_rotary(q, options.rotary), apply_rotary(k, options.rotary)
    kernel = q @ k.transpose(-2, -1)  # [B, H, N, N]
    return kernel @ v / normaliser
