"""Spatial weights by stick breaking."""

from numbers import Real
from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from ..common.numerics import accumulation_dtype, no_autocast


def stick_breaking(
    logits: Tensor, *, offset: bool = True, threshold: Optional[float] = None
) -> Tensor:
    """Break a stick of length 1 into R + 1 spatial weights, equations 4 to 6 of "Ripple Attention
    for Visual Perception with Sub-quadratic Complexity" (Zheng et al., ICML 2022)::

        s_r = 1 / (1 + (R - r + 1) exp(-logit_r)),  r = 1..R,  s_{R+1} = 1
        w_r = s_{r+1} (1 - s_1) ... (1 - s_r),      r = 0..R

    Logits of 0 give equal weights.

    Args:
        logits: (..., R), any floating type; R may be 0.
        offset: False takes s_r = sigmoid(logit_r) instead: weights 1/2, 1/4, ... at logits of 0.
        threshold: the remaining groups share the rest of the stick equally once it is shorter than
            this (equation 6, groups counted from 1, which keeps the sum at 1). ``None`` disables
            it; the paper uses 0.001.

    Returns:
        (..., R + 1), each row on the simplex, in float32 for half types.

    Raises:
        ValueError: logits without a dimension, a threshold outside [0, 1].

    Example:
        >>> import torch
        >>> stick_breaking(torch.zeros(3))
        tensor([0.2500, 0.2500, 0.2500, 0.2500])
        >>> stick_breaking(torch.zeros(3), offset=False)
        tensor([0.5000, 0.2500, 0.1250, 0.1250])
    """
    if logits.dim() < 1 or not logits.is_floating_point():
        raise ValueError(
            f'logits must be floats of shape (..., R), got {logits.dtype} {tuple(logits.shape)}'
        )
    check_threshold(threshold)
    sticks = logits.shape[-1]
    with no_autocast(logits):  # with logarithms: no product underflows, no gradient divides
        logits = logits.to(accumulation_dtype(logits.dtype))
        if offset:
            rest = torch.arange(sticks, 0, -1, dtype=logits.dtype, device=logits.device)
            logits = logits - rest.log()
        log_left = torch.constant_pad_nd(F.logsigmoid(-logits).cumsum(-1), (1, 0))  # [..., R + 1]
        weights = (torch.constant_pad_nd(F.logsigmoid(logits), (0, 1)) + log_left).exp()
        if threshold is None:
            return weights
        left = log_left.exp()
        merged = left < threshold
        first = (~merged).sum(-1, keepdim=True)
        # ONNX's reference evaluator takes no axis of -1 here.
        share = left.gather(left.dim() - 1, first.clamp(max=sticks))
        share = share / (sticks + 1 - first).clamp(min=1)
        return torch.where(merged, share, weights)


def fixed_weights(max_distance: int, device: Optional[torch.device] = None) -> Tensor:
    """Return the weights 1/2, ..., 2^-R, 2^-R of ``stick_breaking(zeros(R), offset=False)``."""
    weights = 0.5 ** torch.arange(1, max_distance + 2, device=device)
    weights[-1] = 0.5**max_distance
    return weights


def check_threshold(threshold: Optional[float]) -> None:
    """Raise ValueError unless ``threshold`` is None or in [0, 1]."""
    if threshold is not None and not (isinstance(threshold, Real) and 0 <= threshold <= 1):
        raise ValueError(f'threshold must be in [0, 1] or None, got {threshold!r}')
