"""Linear attention by its definition: N x N. Slow, short, exact in float64."""

from torch import Tensor

from ..common.feature_maps import FEATURE_MAPS
from .options import LinearOptions


def linear_reference(q: Tensor, k: Tensor, v: Tensor, options: LinearOptions) -> Tensor:
    """See :func:`mmlinattn.ops.linear_attention`."""
    phi = FEATURE_MAPS[options.feature_map]
    kernel = phi(q) @ phi(k).transpose(-2, -1)  # [B, H, N, N]
    if options.key_padding_mask is not None:
        kernel = kernel.masked_fill(options.key_padding_mask[:, None, None], 0)
    return kernel @ v / (kernel.sum(-1, keepdim=True) + options.eps)
