"""Learnt feature map in torch."""

from typing import Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..common.numerics import accumulation_dtype, multiply, no_autocast


def adaptive_torch(
    q: Tensor, k: Tensor, frequencies: Tensor, weight: Tensor, bias: Tensor
) -> Tuple[Tensor, Tensor]:
    """Compute :func:`mmlinattn.ops.adaptive_features`; half types in float32."""
    dtype = accumulation_dtype(q.dtype)
    frequencies, weight, bias = (t.to(dtype) for t in (frequencies, weight, bias))
    bias = bias if bias.dim() == 1 else bias[:, None]
    with no_autocast(q):
        q_out, k_out = (
            F.relu(multiply(sines_and_cosines(x.to(dtype), frequencies), weight) + bias)
            for x in (q, k)
        )
    return q_out.to(q.dtype), k_out.to(k.dtype)


def sines_and_cosines(x: Tensor, frequencies: Tensor) -> Tensor:
    """Return ``[sin(W1 x); cos(W1 x)]``, (B, heads, N, 2 m); both arguments have one dtype."""
    phase = multiply(x, frequencies)
    return torch.cat([phase.sin(), phase.cos()], -1)
