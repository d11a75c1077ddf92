"""RALA in three passes over the tokens; nothing of size N is written but the output."""

from typing import Optional

from torch import Tensor

from ..linear import triton_ops as family
from .options import RalaOptions


def fused(q: Tensor, k: Tensor, v: Tensor, options: RalaOptions) -> Tensor:
    """See :func:`mmlinattn.ops.rala_attention`."""
    return family.fused(q, k, v, options.of_family())


def refuses(q: Tensor, k: Tensor, v: Tensor, options: RalaOptions) -> Optional[str]:
    """Why the kernel cannot serve, or None."""
    if options.token_weights is not None:
        return 'given token_weights have no kernel'
    return family.refuses(q, k, v, options.of_family())
