"""Definition of ripple attention, N x N: short, slow, exact in float64."""

from torch import Tensor

from .groups import RippleOptions, weight_pairs


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
    kernel = weight_pairs(weights.to(v.dtype), options) * (q @ k.transpose(-2, -1))
    return kernel @ v / (kernel.sum(-1, keepdim=True) + options.eps)
