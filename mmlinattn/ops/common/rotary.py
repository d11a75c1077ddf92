"""2D rotary position encoding of RALA (CVPR 2025) and of DINOv3 (2025).

Rows rotate the first half of the channels, columns the second half; neighbouring channels form a
pair.
"""

import math
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple, Union

import torch
import torch.nn.functional as F
from torch import Tensor

from .checks import (
    check_floating_point,
    check_hw_shape,
    check_rotary_dim,
    check_shared_rotary,
)
from .numerics import HALF_TYPES, accumulation_dtype, constant, is_tracing
from .packed import ALIGNED, PackedShapes

Shape = Union[Tuple[int, int], PackedShapes]
_CPU = torch.device('cpu')


class Rotary(NamedTuple):
    """Rotary position of the tokens of a map; its tables are cached.

    Attributes:
        hw_shape: (H, W), or :class:`.PackedShapes`, which also has the number of extra tokens.
        head_dim: channels per head, d; a multiple of 4.
        base: the slowest angle is ``1 / base`` radians per step.
        num_extra_tokens: tokens without position, before those of the map; not rotated.
        num_heads: heads that share the channels of one rotation, as in MLLA: rows rotate the first
            half of all ``num_heads * head_dim`` channels, a multiple of 4; ``head_dim`` is even.
        normalized: places are the centres of the tokens in a map from -1 to 1, as in DINOv3, and
            an angle is ``2 pi place / base^(t / (d / 4))``. Otherwise places count tokens.
        augment: (2, 2), the shifts of normalized rows and columns, then the factors that follow
            the shift. Its tables are not cached.

    Example:
        >>> Rotary((2, 3), 8).angles(torch.float32).shape
        torch.Size([6, 4, 2])
        >>> Rotary((2, 3), 8, num_heads=3).angles(torch.float32).shape
        torch.Size([3, 6, 4, 2])
    """

    hw_shape: Shape
    head_dim: int
    base: float = 10000.0
    num_extra_tokens: int = 0
    num_heads: int = 1
    normalized: bool = False
    augment: Optional[Tensor] = None

    def axes(self, dtype: torch.dtype, device: Optional[torch.device] = None) -> Tensor:
        """Return cosines and sines of the rows, then of the columns: (2, H + W, d / 4).

        They are float32, for ``dtype`` of 16 bits float16; d is the number of channels of a
        rotation, ``num_heads * head_dim``. The flat tables of packed images follow each other, see
        :meth:`.PackedShapes.table`.
        """
        kept = torch.float16 if dtype in (torch.float16, torch.bfloat16) else torch.float32
        return self._table(_rounded_axes, kept, device, None)

    def angles(
        self, dtype: torch.dtype, device: Optional[torch.device] = None, tracing: Any = None
    ) -> Tensor:
        """Return cosine and sine of each pair of channels, (E + N, d / 2, 2).

        With ``num_heads`` above 1 they differ between heads: (num_heads, E + N, d / 2, 2).
        A view as complex numbers is valid. The angles are computed in at least float32.
        """
        return self._table(_angles, dtype, device, tracing)

    def _table(
        self, build: Callable[..., Tensor], dtype: torch.dtype, device: Any, tracing: Any
    ) -> Tensor:
        rotary = self
        if isinstance(self.hw_shape, list):
            rotary = self.of_map(tuple(self.hw_shape), self.num_extra_tokens)
        tracing = self.augment is not None or tracing
        return constant(build, device or _CPU, rotary, dtype, tracing=tracing)

    def images(self) -> 'List[Rotary]':
        """Return the rotary position of each of the packed images."""
        assert isinstance(self.hw_shape, PackedShapes)
        extra = self.hw_shape.num_extra_tokens
        return [self.of_map(shape, extra) for shape in self.hw_shape.hw_shapes]

    def of_map(self, hw_shape: Shape, num_extra_tokens: int) -> 'Rotary':
        """Return the same rotation for another map."""
        # Not _replace, which torch 2.4 cannot compile.
        return Rotary(
            hw_shape, self.head_dim, self.base, num_extra_tokens, self.num_heads, self.normalized,
            self.augment,
        )  # fmt: skip


def apply_rotary(x: Tensor, rotary: Optional[Rotary]) -> Tensor:
    """Rotate the channel pairs ``(2t, 2t + 1)`` of ``x`` (..., N, d) by the positions of tokens.

    Raises:
        TypeError, ValueError: ``rotary`` does not fit ``x``.

    Example:
        >>> x = torch.randn(1, 2, 6, 8)
        >>> turned = apply_rotary(x, Rotary((2, 3), 8))
        >>> torch.allclose(turned.norm(dim=-1), x.norm(dim=-1), atol=1e-5)
        True
    """
    return rotated(rotary, x)[0]


def rotated(rotary: Optional[Rotary], *tensors: Tensor) -> Sequence[Tensor]:
    """Apply :func:`apply_rotary` to tensors of one dtype on one device."""
    if rotary is None:
        return tensors
    for x in tensors:
        check_floating_point('x', x)
        if x.dim() < 2:
            raise ValueError(f'x must have shape (..., N, d), got {tuple(x.shape)}')
        packed = getattr(rotary, 'hw_shape', None)
        packed = packed if isinstance(packed, PackedShapes) else None
        check_rotary(rotary, x, packed, 'x')
        if packed is not None and x.shape[-2] != packed.num_tokens:
            given = f'{packed.num_tokens} positions but x has {x.shape[-2]} tokens'
            raise ValueError(f'rotary has {given}')
    x, tracing = tensors[0], is_tracing()
    if tracing or x.dtype not in HALF_TYPES:
        angles = rotary.angles(x.dtype, x.device, tracing)
        return [turn(x, angles, False, tracing) for x in tensors]
    cos, sin = rotary._table(_half_tables, x.dtype, x.device, tracing)
    # A third of the operations of products by pairs: in half types the host is what users wait for.
    pairs = [x.view(*x.shape[:-1], x.shape[-1] // 2, 2) for x in tensors]
    return [torch.addcmul(x * cos, y.flip(-1).flatten(-2), sin) for x, y in zip(tensors, pairs)]


def turn(x: Tensor, angles: Tensor, back: bool, tracing: bool) -> Tensor:
    """Rotate the channel pairs of ``x`` (..., N, d) by ``angles`` (..., N, d/2, 2), or ``back``."""
    pairs = x.unflatten(-1, (-1, 2)) if tracing else x.view(*x.shape[:-1], x.shape[-1] // 2, 2)
    if not tracing and _supports_complex(pairs):
        # One pass with the same products and sums.
        unit = torch.view_as_complex(angles)
        unit = unit.conj() if back else unit
        return torch.view_as_real(torch.view_as_complex(pairs) * unit).flatten(-2)
    (even, odd), (cos, sin) = pairs.unbind(-1), angles.unbind(-1)
    sin = -sin if back else sin
    return torch.stack([even * cos - odd * sin, odd * cos + even * sin], dim=-1).flatten(-2)


def check_rotary(
    rotary: Optional[Rotary], q: Tensor, packed: Optional[PackedShapes], name: str = 'q'
) -> None:
    """Raise TypeError or ValueError unless ``rotary`` is None or fits q, (B, heads, N, d)."""
    if rotary is None:
        return
    num_tokens, head_dim = q.shape[-2:]
    if not isinstance(rotary, Rotary):
        raise TypeError(f'rotary must be a Rotary, got {type(rotary).__name__}')
    if isinstance(rotary.hw_shape, PackedShapes) or packed is not None:
        if rotary.hw_shape != packed:
            raise ValueError(f'rotary.hw_shape must be {packed=}, got {rotary.hw_shape}')
    else:
        check_hw_shape(num_tokens - rotary.num_extra_tokens, rotary.hw_shape, name)
    if not rotary.base > 0:
        raise ValueError(f'rotary.base must be above 0, got {rotary.base!r}')
    if rotary.augment is not None and not rotary.normalized:
        raise ValueError('rotary.augment needs normalized=True: it shifts normalized positions')
    if rotary.num_heads == 1:
        check_rotary_dim(rotary.head_dim, 'rotary.head_dim')
    else:
        check_shared_rotary(rotary.num_heads * rotary.head_dim, rotary.num_heads)
        heads = q.shape[-3] if q.dim() > 2 else 1
        if rotary.num_heads != heads:
            raise ValueError(
                f'rotary.num_heads is {rotary.num_heads}, but {name} has {heads} heads'
            )
    if rotary.head_dim != head_dim:
        shape = f'{name} has {head_dim} channels per head'
        raise ValueError(f'rotary.head_dim is {rotary.head_dim}, but {shape}')


def _supports_complex(pairs: Tensor) -> bool:
    """Return True if (..., 2) can be viewed as complex numbers."""
    if pairs.dtype not in (torch.float32, torch.float64) or pairs.storage_offset() % 2:
        return False
    *strides, last = pairs.stride()
    for stride in strides:  # a generator would cost a Python call for each stride
        if stride % 2:
            return False
    return last == 1


def _axes(rotary: Rotary, dtype: torch.dtype, device: Optional[torch.device]) -> Tensor:
    if isinstance(rotary.hw_shape, PackedShapes):
        tables = [_axes(image, dtype, device).flatten() for image in rotary.images()]
        return torch.cat([F.pad(table, (0, -len(table) % ALIGNED)) for table in tables])
    count = rotary.num_heads * rotary.head_dim // 4
    exponent = torch.linspace(0, 1, count, dtype=dtype, device=device)
    places = [torch.arange(size, dtype=dtype, device=device) for size in rotary.hw_shape]
    if rotary.normalized:
        exponent = torch.arange(count, dtype=dtype, device=device) / count
        places = [2 * (place + 0.5) / size - 1 for place, size in zip(places, rotary.hw_shape)]
        if rotary.augment is not None:
            shifts, factors = rotary.augment.to(dtype)
            places = [(place + shifts[i]) * factors[i] for i, place in enumerate(places)]
        places = [2 * math.pi * place for place in places]
    angle = torch.pow(torch.full_like(exponent, rotary.base), -exponent)  # [d/4]
    turned = torch.cat(places)[:, None] * angle  # [H + W, d/4]
    return torch.stack([turned.cos(), turned.sin()])


def _rounded_axes(rotary: Rotary, dtype: torch.dtype, device: Optional[torch.device]) -> Tensor:
    return _axes(rotary, torch.float32, device).to(dtype)


def _angles(rotary: Rotary, dtype: torch.dtype, device: Optional[torch.device]) -> Tensor:
    if isinstance(rotary.hw_shape, PackedShapes):
        return torch.cat([_angles(image, dtype, device) for image in rotary.images()], -3)
    height, width = rotary.hw_shape
    axes = _axes(rotary, accumulation_dtype(dtype), device).to(dtype).permute(1, 2, 0)
    rows = axes[:height, None].expand(-1, width, -1, -1)  # [H, W, d/4, 2]
    columns = axes[height:][None].expand(height, -1, -1, -1)
    places = torch.cat([rows, columns], dim=2).flatten(0, 1)
    if rotary.num_extra_tokens:
        # Not from a list of numbers: a GPU would be waited for.
        one = places.new_ones(rotary.num_extra_tokens, places.shape[1])
        unturned = torch.stack([one, torch.zeros_like(one)], -1)
        places = torch.cat([unturned, places])
    if rotary.num_heads == 1:
        return places
    return places.unflatten(1, (rotary.num_heads, -1)).transpose(0, 1)  # [heads, N, d / 2, 2]


def _half_tables(rotary: Rotary, dtype: torch.dtype, device: Optional[torch.device]) -> Tensor:
    """Return the factors of a channel and of the other one of its pair, (2, ..., E + N, d)."""
    cos, sin = _angles(rotary, dtype, device).unbind(-1)
    return torch.stack([torch.stack([cos, cos], -1), torch.stack([-sin, sin], -1)]).flatten(-2)
