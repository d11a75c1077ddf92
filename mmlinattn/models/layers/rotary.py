"""Options of rotary position by coordinates, and their augmentation in training."""

from dataclasses import dataclass
from typing import Optional

import torch
from torch import Tensor

from ...utils import check_number


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

    Raises:
        ValueError: ``base`` is not positive, ``rescale`` is below 1, or one of them is no number.

    Example:
        >>> RotaryCoordinates(rescale=2).draw('cpu').shape
        torch.Size([2, 2])
    """

    base: float = 100.0
    rescale: Optional[float] = None

    def __post_init__(self) -> None:
        check_number('rotary.base', self.base, above=True)
        if self.rescale is not None:
            check_number('rotary.rescale', self.rescale, least=1)

    def draw(self, device: torch.device) -> Optional[Tensor]:
        """Return shifts of 0 and random factors (2, 2) of rows and columns; None for no factor."""
        if self.rescale is None:
            return None
        factor = self.rescale ** (2 * torch.rand(1, device=device) - 1)
        return torch.stack([torch.zeros_like(factor), factor]).expand(2, 2)
