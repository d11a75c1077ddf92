"""Local position encoding and gate in torch."""

from typing import Optional, Tuple

import torch.nn.functional as F
from torch import Tensor

from ..common.numerics import is_tracing, needs_gradient


def local_gate_torch(
    out: Tensor,
    v: Tensor,
    gate: Optional[Tensor],
    weight: Tensor,
    bias: Optional[Tensor],
    hw_shape: Tuple[int, int],
) -> Tensor:
    """Compute :func:`mmlinattn.ops.local_gate`."""
    maps = v.unflatten(1, hw_shape).permute(0, 3, 1, 2)  # [B, C, H, W], a view
    # int: tracing makes sizes tensors, which torch 2.4 rejects as a padding.
    local = F.conv2d(maps, weight, bias, padding=int(weight.shape[-1]) // 2, groups=v.shape[2])
    out = add_local(local.permute(0, 2, 3, 1).flatten(1, 2), out)
    return out if gate is None else out * gate


def add_local(local: Tensor, out: Tensor) -> Tensor:
    """Return ``local + out`` in the dtype of ``local``, the fresh result of a convolution.

    In place, except in training: autograd would copy the gradients of the written view five times;
    and in tracing: torch.export cannot prove the strides of the view for all sizes.
    """
    if needs_gradient(local, out) or is_tracing():
        return local + out.to(local.dtype)
    return local.add_(out)
