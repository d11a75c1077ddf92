"""Images of different sizes in one sequence, without padding."""

from dataclasses import dataclass
from typing import Any, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from .numerics import Mask, constant

ALIGNED = 16  # The cosines of each image begin at a multiple of it.


@dataclass(frozen=True)
class PackedShapes:
    """Map sizes of images whose tokens follow each other in one sequence, without padding.

    The tokens of B images are a batch of 1: (1, T, C). It takes the place of ``hw_shape`` in an
    attention, and is the argument ``packed`` of an operator.

    Args:
        hw_shapes: (H, W) of each image. Tokens without a map have the shape (1, N).
        num_extra_tokens: E, the number of extra tokens (class token, registers) before the map
            tokens of each image. An attention sets it from its own ``num_extra_tokens``.

    Raises:
        ValueError: there is no image, a size is no pair of positive integers, or
            ``num_extra_tokens`` is negative.

    Example:
        >>> packed = PackedShapes([(2, 3), (1, 4)])
        >>> packed.lengths, packed.num_tokens
        ((6, 4), 10)
    """

    hw_shapes: Sequence[Tuple[int, int]]
    num_extra_tokens: int = 0

    def __post_init__(self) -> None:
        given = self.hw_shapes.tolist() if hasattr(self.hw_shapes, 'tolist') else self.hw_shapes
        if not isinstance(given, (list, tuple)):
            raise ValueError(f'hw_shapes must be a list of (H, W), got {given!r}')
        shapes = tuple(_check_map(i, shape) for i, shape in enumerate(given))
        if not shapes:
            raise ValueError('hw_shapes must have the (H, W) of at least one image, got none')
        extra = self.num_extra_tokens
        if isinstance(extra, (bool, float, str)) or extra < 0:
            raise ValueError(f'num_extra_tokens must be an integer of at least 0, got {extra!r}')
        object.__setattr__(self, 'hw_shapes', shapes)

    @property
    def lengths(self) -> Tuple[int, ...]:
        """Number of tokens of each image, E + H * W."""
        extra = self.num_extra_tokens
        return tuple([extra + height * width for height, width in self.hw_shapes])

    @property
    def num_tokens(self) -> int:
        """Number of tokens of all images, T."""
        return sum(self.lengths)

    def table(self, pairs: int, device: Optional[torch.device] = None) -> Tensor:
        """Return what the kernels read of each image, int32 (B, 4).

        The columns are the first token, the number of tokens, the width of the map, and the
        index of its first cosine in ``Rotary.axes``. Each row has ``pairs`` angles there.
        """
        rows, first, place = [], 0, 0
        for (height, width), length in zip(self.hw_shapes, self.lengths):
            rows.append((first, length, width, place))
            first += length
            place += -(-2 * pairs * (height + width) // ALIGNED) * ALIGNED
        return constant(_integers, device or torch.device('cpu'), tuple(rows))

    def with_extra_tokens(self, num_extra_tokens: int) -> 'PackedShapes':
        """Return the same maps, with this number of extra tokens before each."""
        if num_extra_tokens == self.num_extra_tokens:
            return self
        return PackedShapes(self.hw_shapes, num_extra_tokens)

    def split(self, x: Tensor, dim: int = 1) -> List[Tensor]:
        """Split packed tokens along ``dim`` into views, one per image."""
        return list(x.split(self.lengths, dim))


def check_packed(
    packed: Optional[PackedShapes], x: Tensor, mask: Mask, dim: int = 1, name: str = 'x'
) -> None:
    """Raise TypeError or ValueError unless ``packed`` is None or fits the tokens of ``x``.

    They are a batch of 1 with T tokens along ``dim``, without ``mask``. Messages say ``name``.
    """
    if packed is None:
        return
    if not isinstance(packed, PackedShapes):
        raise TypeError(f'packed must be a PackedShapes, got {type(packed).__name__}')
    if x.shape[0] != 1:
        raise ValueError(f'packed images are a batch of 1, got {name} with {tuple(x.shape)}')
    if x.shape[dim] != packed.num_tokens:
        raise ValueError(
            f'the packed images have {list(packed.lengths)} tokens, together {packed.num_tokens}, '
            f'but {name} has {x.shape[dim]}'
        )
    if mask is not None:
        raise ValueError(
            f'packed images have no padding, got key_padding_mask {tuple(mask.shape)}: leave the '
            'padding out of the tokens'
        )


def _check_map(i: int, shape: Any) -> Tuple[int, int]:
    shape = shape.tolist() if hasattr(shape, 'tolist') else shape
    sides = tuple(shape) if isinstance(shape, (tuple, list)) else ()
    wrong = (float, str, bool, type(None))  # a symbol of a compiler is allowed
    if len(sides) != 2 or any(isinstance(side, wrong) for side in sides):
        raise ValueError(f'hw_shapes[{i}] must be two integers (H, W), got {shape!r}')
    if sides[0] < 1 or sides[1] < 1:
        raise ValueError(f'hw_shapes[{i}]={sides} has no tokens: leave empty images out')
    return sides


def _integers(values: tuple, device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)
