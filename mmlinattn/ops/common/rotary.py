"""2D rotary position, as RALA (CVPR 2025) uses it: rows turn the first half of the channels,
columns the second half, neighbouring channels are a pair."""

from typing import Optional, Sequence, Tuple

import torch
from torch import Tensor

from .checks import check_rotary_dim
from .numerics import one_graph

Rotary = Tuple[Tensor, Tensor]


def rotary_tables(
    hw_shape: Sequence[int],
    head_dim: int,
    dtype: torch.dtype = torch.float32,
    device: Optional[torch.device] = None,
    base: float = 10000.0,
) -> Rotary:
    """Sines and cosines of all positions of a map.

    Args:
        hw_shape: (H, W) of the map.
        head_dim: channels a head, d; a multiple of 4.
        dtype, device: of the result; angles are always computed in at least float32.
        base: the slowest angle is ``1 / base`` radians a step.

    Returns:
        ``(sin, cos)``, each (N, d) with N = H * W, row-major; each value stands twice.

    Raises:
        ValueError: if ``head_dim`` is not a multiple of 4.

    Example:
        >>> sin, cos = rotary_tables((2, 3), 8)
        >>> sin.shape
        torch.Size([6, 8])
    """
    check_rotary_dim(head_dim)
    height, width = hw_shape
    work = torch.promote_types(dtype, torch.float32)
    exponent = torch.linspace(0, 1, head_dim // 4, dtype=work, device=device)
    angle = torch.pow(torch.full_like(exponent, base), -exponent).repeat_interleave(2)  # [d/2]
    rows = torch.arange(height, dtype=work, device=device)[:, None] * angle  # [H, d/2]
    cols = torch.arange(width, dtype=work, device=device)[:, None] * angle  # [W, d/2]

    def table(function) -> Tensor:
        by_row = function(rows).to(dtype)[:, None].expand(height, width, -1)
        by_col = function(cols).to(dtype)[None].expand(height, width, -1)
        return torch.cat([by_row, by_col], dim=-1).flatten(0, 1)  # [N, d]

    return table(torch.sin), table(torch.cos)


def apply_rotary(x: Tensor, rotary: Optional[Rotary]) -> Tensor:
    """Turns the channel pairs ``(2t, 2t + 1)`` of ``x`` (..., N, d) by the tables (N, d).

    Example:
        >>> import torch
        >>> x = torch.randn(1, 2, 6, 8)
        >>> turned = apply_rotary(x, rotary_tables((2, 3), 8))
        >>> torch.allclose(turned.norm(dim=-1), x.norm(dim=-1), atol=1e-5)
        True
    """
    return x if rotary is None else turn(x, rotary_angles(rotary))


def rotary_angles(rotary: Rotary, dtype: Optional[torch.dtype] = None) -> Tensor:
    """Cosine and sine of each pair of channels, (N, d/2, 2): complex numbers, if looked at so."""
    sin, cos = rotary
    return torch.stack([cos[..., ::2], sin[..., ::2]], dim=-1).to(dtype or cos.dtype)


def turn(x: Tensor, angles: Optional[Tensor], back: bool = False) -> Tensor:
    """Turns the channel pairs of ``x`` (..., N, d) by ``angles`` (N, d/2, 2), or back."""
    if angles is None:
        return x
    pairs = x.unflatten(-1, (-1, 2))
    if _complex_serves(pairs):
        # One pass, one result; the same products and sums.
        unit = torch.view_as_complex(angles)
        unit = unit.conj() if back else unit
        return torch.view_as_real(torch.view_as_complex(pairs) * unit).flatten(-2)
    (even, odd), (cos, sin) = pairs.unbind(-1), angles.unbind(-1)
    sin = -sin if back else sin
    return torch.stack([even * cos - odd * sin, odd * cos + even * sin], dim=-1).flatten(-2)


def _complex_serves(pairs: Tensor) -> bool:
    """Whether (..., 2) can be read as complex numbers, and nobody wants the real form."""
    return (
        not one_graph()
        and pairs.dtype in (torch.float32, torch.float64)
        and pairs.stride(-1) == 1
        and all(stride % 2 == 0 for stride in pairs.stride()[:-1])
        and pairs.storage_offset() % 2 == 0
    )


def check_rotary(rotary: Optional[Rotary], num_tokens: int, head_dim: int) -> None:
    """Raises ValueError unless ``rotary`` is None or a pair of (N, d) tables."""
    if rotary is None:
        return
    shapes = [tuple(table.shape) for table in rotary]
    if shapes != [(num_tokens, head_dim)] * 2:
        raise ValueError(
            f'rotary must be (sin, cos), each of shape (N, d) = ({num_tokens}, {head_dim}), '
            f'got {shapes}'
        )
