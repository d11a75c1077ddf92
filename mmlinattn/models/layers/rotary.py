"""Options of rotary position by coordinates, and their augmentation in training."""

import math
from dataclasses import dataclass
from numbers import Real
from typing import Optional

import torch
from torch import Tensor


@dataclass(frozen=True)
class RotaryCoordinates:
    """Rotary position by places from -1 to 1, "DINOv3" (Siméoni et al., 2025).

    Height and width of the map both span -1 to 1, so that a larger image has denser places. In
    training each attention draws a transform of all places anew, as the release does in each
    block::

        place = (place + shift) * jitter * rescale

    Args:
        base: angles are ``2 pi place / base^(t / (d / 4))``, t = 0, 1, ... for d channels a head.
        shift: largest shift, the same for all tokens, drawn for rows and for columns.
        jitter: largest factor; drawn from 1 / jitter to jitter on a logarithmic scale, for rows and
            for columns.
        rescale: the same, one factor for rows and columns. DINOv3 was trained with 2.

    Raises:
        ValueError: ``base`` is not positive, ``rescale`` is below 1, or one of them is no number.

    Example:
        >>> RotaryCoordinates(rescale=2).draw('cpu').shape
        torch.Size([2, 2])
    """

    base: float = 100.0
    shift: Optional[float] = None
    jitter: Optional[float] = None
    rescale: Optional[float] = None

    def __post_init__(self) -> None:
        for name in ('base', 'shift', 'jitter', 'rescale'):
            value = getattr(self, name)
            number = isinstance(value, Real) and not isinstance(value, bool)
            if not number and (value is not None or name == 'base'):
                raise ValueError(f'rotary.{name} must be a number, got {value!r}')
        least = dict(shift=0, jitter=1, rescale=1)
        for name, bound in least.items():
            value = getattr(self, name)
            if value is not None and not bound <= value < math.inf:
                raise ValueError(f'rotary.{name} must be at least {bound}, or None, got {value!r}')
        if not 0 < self.base < math.inf:
            raise ValueError(f'rotary.base must be positive, got {self.base!r}')

    def draw(self, device: torch.device) -> Optional[Tensor]:
        """Return random shifts and factors (2, 2) of rows and columns, None without options."""
        if self.shift is None and self.jitter is None and self.rescale is None:
            return None
        numbers = 2 * torch.rand(5, device=device) - 1
        shifts = (self.shift or 0.0) * numbers[:2]
        logs = (
            math.log(self.jitter or 1.0) * numbers[2:4] + math.log(self.rescale or 1.0) * numbers[4]
        )
        return torch.stack([shifts, logs.exp()])
