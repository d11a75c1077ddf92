"""Rotary position by coordinates with augmentation in training, and over all heads."""

from dataclasses import dataclass
from typing import Any, Optional

import torch
from torch import Tensor

from ...ops.common.checks import check_shared_rotary
from ...ops.common.rotary import Rotary
from ...utils import check_number
from .token_layout import TokenLayout


@dataclass(frozen=True)
class RotaryCoordinates:
    """Rotary position by places from -1 to 1, "DINOv3" (Siméoni et al., 2025).

    Height and width of the map both span -1 to 1, so that a larger image has denser places. In
    training each attention multiplies all places by one factor that it draws anew, as the release
    does in each block.

    Args:
        base: angles are ``2 pi place / base^(t / (d / 4))``, t = 0, 1, ... for d channels a head.
        rescale: largest factor; drawn from 1 / rescale to rescale on a logarithmic scale. DINOv3
            was trained with 2. None for no factor.
        shift: largest shift of all rows, and of all columns, before the factor; None for none.

    Raises:
        ValueError: ``base`` is not positive, ``rescale`` is below 1, ``shift`` is negative, or one
            of them is no number.

    Example:
        >>> RotaryCoordinates(rescale=2).draw('cpu').shape
        torch.Size([2, 2])
    """

    base: float = 100.0
    rescale: Optional[float] = None
    shift: Optional[float] = None

    def __post_init__(self) -> None:
        check_number('rotary.base', self.base, above=True)
        if self.rescale is not None:
            check_number('rotary.rescale', self.rescale, least=1)
        if self.shift is not None:
            check_number('rotary.shift', self.shift)

    def draw(self, device: torch.device) -> Optional[Tensor]:
        """Return random shifts and factors (2, 2) of rows and columns; None if there are none."""
        if self.rescale is None and self.shift is None:
            return None
        factor = (self.rescale or 1) ** (2 * torch.rand(1, device=device) - 1)
        shift = torch.zeros_like(factor)
        if self.shift is not None:
            shift = self.shift * (2 * torch.rand(2, device=device) - 1)
        return torch.stack([shift.expand(2), factor.expand(2)])


def check_rotary_over_heads(attn: Any, rotary: Any) -> bool:
    """Return the checked option of an attention that rotates all channels before the heads."""
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
