"""Options of the operators with anchors."""

from dataclasses import dataclass
from numbers import Real
from typing import Optional

from torch import Tensor


@dataclass(frozen=True)
class WalkOptions:
    """Options of :func:`mmlinattn.ops.random_walk_attention`."""

    decay: float
    steps: Optional[int]
    key_padding_mask: Optional[Tensor]
    cross: bool = False


def check_walk(decay: float, steps: Optional[int]) -> None:
    """Raise ValueError or TypeError unless the options of a random walk are valid."""
    if not isinstance(decay, Real) or not 0 < decay < 1:
        raise ValueError(f'decay must be in (0, 1), got {decay!r}')
    if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int)):
        raise TypeError(f'steps must be None or an integer, got {steps!r}')
    if steps is not None and steps < 1:
        raise ValueError(f'steps must be None or at least 1, got {steps}')
