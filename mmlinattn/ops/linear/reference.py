"""Linear attention by its definition: N x N. Slow, short, exact in float64."""

from typing import Optional

from torch import Tensor

from ..feature_maps import feature_map as get_feature_map


def linear_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_padding_mask: Optional[Tensor] = None,
    eps: float = 1e-6,
    feature_map: str = 'identity',
) -> Tensor:
    """See :func:`mmlinattn.ops.linear_attention`."""
    phi = get_feature_map(feature_map)
    kernel = phi(q) @ phi(k).transpose(-2, -1)  # [B, H, N, N]
    if key_padding_mask is not None:
        kernel = kernel.masked_fill(key_padding_mask[:, None, None], 0)
    return kernel @ v / (kernel.sum(-1, keepdim=True) + eps)
