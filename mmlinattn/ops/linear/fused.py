"""Linear attention in two passes over the tokens."""

from typing import Optional

from torch import Tensor

from ..kernels.common import FEATURES
from ..kernels.common import refuses as refuses_tokens
from ..kernels.kernelised import SHARED_KIB
from ..kernels.kernelised_op import kernelised_attention


def fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_padding_mask: Optional[Tensor] = None,
    eps: float = 1e-6,
    feature_map: str = 'identity',
) -> Tensor:
    """See :func:`mmlinattn.ops.linear_attention`."""
    return kernelised_attention(q, k, v, None, key_padding_mask, eps, feature_map, weighted=False)


def refuses(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_padding_mask: Optional[Tensor] = None,
    eps: float = 1e-6,
    feature_map: str = 'identity',
) -> Optional[str]:
    """Why the kernel cannot serve, or None."""
    if feature_map not in FEATURES:
        return f'feature_map {feature_map!r} has no kernel, these have: {tuple(FEATURES)}'
    if q.shape[-1] != v.shape[-1]:
        return f'kernels are for as many features as values, got {q.shape[-1]} and {v.shape[-1]}'
    return refuses_tokens(q, q.shape[-1], SHARED_KIB)
