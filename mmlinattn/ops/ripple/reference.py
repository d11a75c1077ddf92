"""Definition of ripple attention, N x N: short, slow, exact in float64."""

from torch import Tensor

from .groups import group_index, group_radii
from .options import RippleOptions
from .weights import finished_weights


def ripple_reference(
    q: Tensor, k: Tensor, v: Tensor, weights: Tensor, options: RippleOptions
) -> Tensor:
    """Compute :func:`mmlinattn.ops.ripple_attention` by its definition."""
    for name, features in (('q', q), ('k', k)):
        if (features < 0).any():
            raise ValueError(
                f'{name} must be feature-mapped and not negative, its minimum is '
                f'{features.min().item():.3g}'
            )
    weights = finished_weights(weights, options.stick)
    radii = group_radii(weights.shape[-1] - 1, options.groups)
    index = group_index(options.hw_shape, radii, q.device)
    spatial = weights.to(v.dtype).gather(-1, index.expand(*q.shape[:2], -1, -1))  # [B, H, N, N]
    kernel = spatial * (q @ k.transpose(-2, -1))
    if options.key_padding_mask is not None:
        kernel = kernel.masked_fill(options.key_padding_mask[:, None, None], 0)
    return kernel @ v / (kernel.sum(-1, keepdim=True) + options.eps)
