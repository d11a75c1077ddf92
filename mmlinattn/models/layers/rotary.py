"""Rotary position by coordinates with augmentation in training, and over all heads."""

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any, Optional

import torch
from torch import Tensor

from ...ops.common.checks import check_shared_rotary
from ...ops.common.rotary import Rotary
from .token_layout import TokenLayout


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


def check_rotary_over_heads(attn: Any, rotary: Any) -> bool:
    """Return the option ``rotary`` of an attention that rotates all channels before the heads.

    Raises:
        ValueError: it is no bool, or the channels cannot be split.
    """
    if type(rotary) is not bool:
        raise ValueError(
            f'{type(attn).__name__} has a rotary position of its own, got {rotary=}: set '
            'rotary=True or False in its attn_cfg'
        )
    if rotary:
        check_shared_rotary(attn.embed_dims, attn.num_heads)
    return rotary


def rotary_over_heads(attn: Any, layout: TokenLayout) -> Optional[Rotary]:
    """Return MLLA's rotation over all C channels, whose angles are ``10000^(-t / (C / 4))``."""
    if layout.rotary is None:
        return None
    count = attn.embed_dims // 4
    base = 10000.0 ** ((count - 1) / count)  # the last of the angles is 1 / base
    return Rotary(
        layout.hw_shape, attn.head_dim, base, layout.num_extra_tokens, num_heads=attn.num_heads
    )
