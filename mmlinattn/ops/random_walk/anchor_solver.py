"""Solvers on the M x M matrices between anchors: random walks and pseudo-inverses."""

import math
from typing import NamedTuple, Optional

import torch
from torch import Tensor


class Walk(NamedTuple):
    """Decay of a random walk, and its largest number of steps or None."""

    decay: float
    steps: Optional[int]


def solve_walk(state: Tensor, transition: Tensor, options: Walk) -> Tensor:
    """Apply all steps after the first one to ``G_K v``, by ``G_K G_Q``, and the normaliser."""
    decay, steps = options
    if steps == 1:
        return state
    walk = decay * transition
    if steps is not None:
        total = state
        for _ in range(steps - 1):
            total = state + walk @ total
        return normaliser(options) * total
    state = normaliser(options) * state
    # (I - W)^-1 = (I + W)(I + W^2)(I + W^4)...: the rows of W sum to the decay, so the error
    # after n factors is decay^(2^n).
    num_factors = series_factors(decay, walk.dtype)
    for i in range(num_factors):
        state = state + walk @ state
        if i + 1 < num_factors:
            walk = walk @ walk
    return state


def normaliser(options: Walk) -> float:
    """Return what makes the weights of all steps sum to 1."""
    decay, steps = options
    return 1 - decay if steps is None else (1 - decay) / (1 - decay**steps)


def series_factors(decay: float, dtype: torch.dtype) -> int:
    """Return how many factors of the product reach the precision of ``dtype``."""
    digits = math.log(torch.finfo(dtype).eps) / math.log(decay)
    return max(1, math.ceil(math.log2(digits)))


def iterative_pinv(x: Tensor, iterations: int) -> Tensor:
    """Approximate the pseudo-inverse of (..., M, M) by a third-order iteration (equation 14)::

        Z <- Z (13 I - X Z (15 I - X Z (7 I - X Z))) / 4,    Z = X^T / (|X|_1 |X|_inf) at first

    Every matrix has its own initial scale, so that an image does not change another.
    """
    size = x.abs()
    scale = size.sum(-2).amax(-1) * size.sum(-1).amax(-1)
    z = x.transpose(-2, -1) / scale[..., None, None]
    identity = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
    for _ in range(iterations):
        product = x @ z
        z = z @ (13 * identity - product @ (15 * identity - product @ (7 * identity - product))) / 4
    return z
