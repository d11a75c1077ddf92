"""Local position and gate, by torch."""

from typing import Optional, Tuple

import torch.nn.functional as F
from torch import Tensor

from ..common.numerics import needs_gradient


def local_gate_portable(
    out: Tensor,
    v: Tensor,
    gate: Optional[Tensor],
    weight: Tensor,
    bias: Optional[Tensor],
    hw_shape: Tuple[int, int],
) -> Tensor:
    """See :func:`mmlinattn.ops.local_gate`."""
    maps = v.unflatten(1, hw_shape).permute(0, 3, 1, 2)  # [B, C, H, W], a view
    # int: tracing makes sizes tensors, which torch 2.4 refuses as a padding.
    local = F.conv2d(maps, weight, bias, padding=int(weight.shape[-1]) // 2, groups=v.shape[2])
    out = add_local(local.permute(0, 2, 3, 1).flatten(1, 2), out)
    return out if gate is None else out * gate


def add_local(local: Tensor, out: Tensor) -> Tensor:
    """Their sum in the type of ``local``: in place but in training, where autograd would make five
    passes to copy gradients of a view that was written to.

    Args:
        local: fresh from a convolution.
    """
    return local + out.to(local.dtype) if needs_gradient(local, out) else local.add_(out)
