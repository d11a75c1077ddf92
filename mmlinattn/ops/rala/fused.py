"""RALA in three passes over the tokens; nothing of size N is written but the output."""

from typing import Optional

from torch import Tensor

from ..kernels.common import FEATURES
from ..kernels.common import refuses as refuses_tokens
from ..kernels.kernelised import SHARED_KIB
from ..kernels.kernelised_op import kernelised_attention
from ..rotary import Rotary


def fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rotary: Optional[Rotary] = None,
    key_padding_mask: Optional[Tensor] = None,
    eps: float = 1e-6,
    feature_map: str = 'elu+1',
    token_weights: Optional[Tensor] = None,
) -> Tensor:
    """See :func:`mmlinattn.ops.rala_attention`."""
    return kernelised_attention(q, k, v, rotary, key_padding_mask, eps, feature_map, weighted=True)


def refuses(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rotary: Optional[Rotary] = None,
    key_padding_mask: Optional[Tensor] = None,
    eps: float = 1e-6,
    feature_map: str = 'elu+1',
    token_weights: Optional[Tensor] = None,
) -> Optional[str]:
    """Why the kernel cannot serve, or None."""
    if token_weights is not None:
        return 'given token_weights have no kernel'
    if feature_map not in FEATURES:
        return f'feature_map {feature_map!r} has no kernel, these have: {tuple(FEATURES)}'
    return refuses_tokens(q, q.shape[-1], SHARED_KIB)
