"""2D rotary position encoding of RALA (CVPR 2025).

Rows rotate the first half of the channels, columns the second half; neighbouring channels form a
pair.
"""

from collections import OrderedDict
from typing import Callable, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from .checks import check_hw_shape, check_rotary_dim
from .numerics import accumulation_dtype, has_dispatch_mode, is_tracing


class Rotary(NamedTuple):
    """Rotary position of the tokens of a map; its tables are cached.

    Attributes:
        hw_shape: (H, W) of the map.
        head_dim: channels per head, d; a multiple of 4.
        base: the slowest angle is ``1 / base`` radians per step.
        num_extra_tokens: tokens without position, before those of the map; not rotated.

    Example:
        >>> Rotary((2, 3), 8).angles(torch.float32).shape
        torch.Size([6, 4, 2])
    """

    hw_shape: Tuple[int, int]
    head_dim: int
    base: float = 10000.0
    num_extra_tokens: int = 0

    def axes(self, device: Optional[torch.device] = None) -> Tensor:
        """Return cosines and sines of the rows, then of the columns: (2, H + W, d / 4), float32."""
        return _cached(_axes, self, torch.float32, device)

    def angles(self, dtype: torch.dtype, device: Optional[torch.device] = None) -> Tensor:
        """Return cosine and sine of each pair of channels, (E + N, d / 2, 2).

        A view as complex numbers is valid. The angles are computed in at least float32.
        """
        return _cached(_angles, self, dtype, device)


def apply_rotary(x: Tensor, rotary: Optional[Rotary]) -> Tensor:
    """Rotate the channel pairs ``(2t, 2t + 1)`` of ``x`` (..., N, d) by the positions of tokens.

    Example:
        >>> x = torch.randn(1, 2, 6, 8)
        >>> turned = apply_rotary(x, Rotary((2, 3), 8))
        >>> torch.allclose(turned.norm(dim=-1), x.norm(dim=-1), atol=1e-5)
        True
    """
    return x if rotary is None else turn(x, rotary.angles(x.dtype, x.device))


def turn(x: Tensor, angles: Optional[Tensor], back: bool = False) -> Tensor:
    """Rotate the channel pairs of ``x`` (..., N, d) by ``angles`` (N, d/2, 2), or ``back``."""
    if angles is None:
        return x
    pairs = x.unflatten(-1, (-1, 2))
    if _supports_complex(pairs):
        # One pass with the same products and sums.
        unit = torch.view_as_complex(angles)
        unit = unit.conj() if back else unit
        return torch.view_as_real(torch.view_as_complex(pairs) * unit).flatten(-2)
    (even, odd), (cos, sin) = pairs.unbind(-1), angles.unbind(-1)
    sin = -sin if back else sin
    return torch.stack([even * cos - odd * sin, odd * cos + even * sin], dim=-1).flatten(-2)


def check_rotary(rotary: Optional[Rotary], num_tokens: int, head_dim: int) -> None:
    """Raise TypeError or ValueError unless ``rotary`` is None or fits (N, d) tokens."""
    if rotary is None:
        return
    if not isinstance(rotary, Rotary):
        raise TypeError(f'rotary must be a Rotary, got {type(rotary).__name__}')
    check_hw_shape(num_tokens - rotary.num_extra_tokens, rotary.hw_shape, 'q')
    check_rotary_dim(rotary.head_dim, 'rotary.head_dim')
    if rotary.head_dim != head_dim:
        raise ValueError(
            f'rotary.head_dim is {rotary.head_dim}, but q has {head_dim} channels per head'
        )


def _supports_complex(pairs: Tensor) -> bool:
    """Return True if (..., 2) can be viewed as complex numbers."""
    return (
        not is_tracing()
        and pairs.dtype in (torch.float32, torch.float64)
        and pairs.stride(-1) == 1
        and all(stride % 2 == 0 for stride in pairs.stride()[:-1])
        and pairs.storage_offset() % 2 == 0
    )


def _axes(rotary: Rotary, dtype: torch.dtype, device: Optional[torch.device]) -> Tensor:
    count = rotary.head_dim // 4
    exponent = torch.linspace(0, 1, count, dtype=dtype, device=device)
    angle = torch.pow(torch.full_like(exponent, rotary.base), -exponent)  # [d/4]
    places = [torch.arange(size, dtype=dtype, device=device) for size in rotary.hw_shape]
    turned = torch.cat(places)[:, None] * angle  # [H + W, d/4]
    return torch.stack([turned.cos(), turned.sin()])


def _angles(rotary: Rotary, dtype: torch.dtype, device: Optional[torch.device]) -> Tensor:
    height, width = rotary.hw_shape
    axes = _axes(rotary, accumulation_dtype(dtype), device).to(dtype).permute(1, 2, 0)
    rows = axes[:height, None].expand(-1, width, -1, -1)  # [H, W, d/4, 2]
    columns = axes[height:][None].expand(height, -1, -1, -1)
    places = torch.cat([rows, columns], dim=2).flatten(0, 1)
    if not rotary.num_extra_tokens:
        return places
    unturned = places.new_tensor([1, 0]).expand(rotary.num_extra_tokens, places.shape[1], 2)
    return torch.cat([unturned, places])


# Most recent tables; some MiB each for large maps.
_TABLES: 'OrderedDict[tuple, Tensor]' = OrderedDict()
_MOST_TABLES = 16


def _cached(
    build: Callable[..., Tensor],
    rotary: Rotary,
    dtype: torch.dtype,
    device: Optional[torch.device],
) -> Tensor:
    """Return ``build(rotary, dtype, device)``, from the cache if it was built before."""
    device = torch.device(device or 'cpu')
    if is_tracing() or has_dispatch_mode() or device.type == 'meta' or _is_capturing(device):
        return build(rotary, dtype, device)
    key = (build, *rotary.hw_shape, *rotary[1:], dtype, device)
    table = _TABLES.get(key)
    if table is None:
        # Outside of inference mode: training may use the table later.
        with torch.inference_mode(False), torch.no_grad():
            table = _TABLES[key] = build(rotary, dtype, device)
        while len(_TABLES) > _MOST_TABLES:
            _TABLES.popitem(last=False)
    return table


def _is_capturing(device: torch.device) -> bool:
    """Return True while a CUDA graph is captured: its tensors must not be cached."""
    return device.type == 'cuda' and torch.cuda.is_current_stream_capturing()
