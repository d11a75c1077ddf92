"""The walk between the anchors, which the portable and the fused form share."""

import math

import torch
from torch import Tensor

from ..common.numerics import exported
from .options import WalkOptions


def walk_on(state: Tensor, walk: Tensor, options: WalkOptions) -> Tensor:
    """All steps after the first one, between the anchors, and the normaliser.

    Args:
        state: ``G_K v``, (B, heads, M, d_v).
        walk: ``G_K G_Q``, (B, heads, M, M); unused for one step.
    """
    decay, steps = options.decay, options.steps
    if steps == 1:
        return state
    walk = decay * walk
    if steps is not None:
        total = state
        for _ in range(steps - 1):
            total = state + walk @ total
        return (1 - decay) / (1 - decay**steps) * total
    state = (1 - decay) * state
    # ONNX has no solver; the series is as exact.
    if options.solver == 'solve' and not exported():
        identity = torch.eye(walk.shape[-1], dtype=walk.dtype, device=walk.device)
        return torch.linalg.solve(identity - walk, state)
    # (I - W)^-1 = (I + W)(I + W^2)(I + W^4)...: the rows of W sum to the decay, so what is left
    # out after n factors is decay^(2^n).
    num_factors = series_factors(decay, walk.dtype)
    for i in range(num_factors):
        state = state + walk @ state
        if i + 1 < num_factors:
            walk = walk @ walk
    return state


def series_factors(decay: float, dtype: torch.dtype) -> int:
    """Factors of the product form that reach the precision of ``dtype``.

    Example:
        >>> [series_factors(decay, torch.float32) for decay in (0.1, 0.5, 0.9)]
        [3, 5, 8]
    """
    digits = math.log(torch.finfo(dtype).eps) / math.log(decay)
    return max(1, math.ceil(math.log2(digits)))
