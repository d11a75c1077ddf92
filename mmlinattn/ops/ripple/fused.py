"""Ripple attention by tiles whose scores and spatial weights stay in registers."""

from typing import Optional, Tuple

from torch import Tensor

from ..kernels.common import refuses as refuses_tokens
from ..kernels.ripple import SHARED_KIB
from ..kernels.ripple_op import ripple_kernels

# Of the halo of a tile; beyond, summed-area tables cost less.
MAX_DISTANCE = 16


def fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    weights: Tensor,
    hw_shape: Tuple[int, int],
    groups: str,
    key_padding_mask: Optional[Tensor],
    eps: float,
    algorithm: str,
    stick: Optional[str],
) -> Tensor:
    """See :func:`mmlinattn.ops.ripple_attention`."""
    return ripple_kernels(q, k, v, weights, hw_shape, key_padding_mask, eps, stick)


def refuses(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    weights: Tensor,
    hw_shape: Tuple[int, int],
    groups: str,
    key_padding_mask: Optional[Tensor],
    eps: float,
    algorithm: str,
    stick: Optional[str],
) -> Optional[str]:
    """Why the kernel cannot serve, or None."""
    max_distance = weights.shape[-1] - (stick is None)
    if groups != 'chebyshev':
        return f'groups={groups!r} have no kernel'
    if not 1 <= max_distance <= MAX_DISTANCE:
        return f'kernels are for R from 1 to {MAX_DISTANCE}, got {max_distance}'
    if q.shape[-1] != v.shape[-1]:
        return f'kernels are for as many features as values, got {q.shape[-1]} and {v.shape[-1]}'
    return refuses_tokens(q, q.shape[-1], SHARED_KIB)
