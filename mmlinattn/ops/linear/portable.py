"""Linear attention in O(N m d): one pass over keys and values, one over queries."""

from typing import Optional

from torch import Tensor

from ..kernelised import kernelised_portable


def linear_portable(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_padding_mask: Optional[Tensor] = None,
    eps: float = 1e-6,
    feature_map: str = 'identity',
) -> Tensor:
    """See :func:`mmlinattn.ops.linear_attention`."""
    return kernelised_portable(q, k, v, None, key_padding_mask, eps, feature_map)
