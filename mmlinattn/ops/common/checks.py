"""Argument checks shared by all operators and layers."""

import math
from contextlib import suppress
from numbers import Real
from typing import Any, Optional, Sequence, Tuple

from torch import Tensor

from ...utils import check_integer
from .numerics import Mask


def check_hw_shape(num_tokens: int, hw_shape: Sequence[int], name: str = 'x') -> Tuple[int, int]:
    """Return ``(H, W)``; raise ValueError unless they are integers with ``num_tokens == H * W``."""
    if type(hw_shape) is tuple and len(hw_shape) == 2:
        height, width = hw_shape
        if type(height) is type(width) is int and height * width == num_tokens and height > 0:
            return hw_shape
    if isinstance(hw_shape, (list, tuple)) and any(isinstance(x, (list, tuple)) for x in hw_shape):
        raise ValueError(f'several map sizes need mmlinattn.ops.PackedShapes, got {hw_shape!r}')
    try:
        height, width = hw_shape
    except (TypeError, ValueError):
        raise ValueError(f'hw_shape must be (H, W), got {hw_shape!r}') from None
    # An exported model has symbols here, which are no int.
    if any(side is None or isinstance(side, (bool, float, str)) for side in hw_shape):
        raise ValueError(f'hw_shape must be two integers, got {hw_shape!r}')
    if height < 1 or width < 1:
        raise ValueError(f'hw_shape must be two positive integers, got {hw_shape!r}')
    if height * width != num_tokens:
        raise ValueError(
            f'hw_shape=({height}, {width}) has {height * width} positions but {name} has '
            f'{num_tokens} tokens; a class token counts in num_extra_tokens'
        )
    return height, width


def check_sides(size: Any, name: str) -> Tuple[int, int]:
    """Return (height, width); raise ValueError unless ``size`` is one or two positive integers."""
    sides = tuple(size) if isinstance(size, (list, tuple)) else (size, size)
    with suppress(ValueError):
        height, width = (check_integer(name, side) for side in sides)
        return height, width
    raise ValueError(f'{name} must be a positive integer, or two: (height, width); got {size!r}')


def check_square(name: str, value: Any) -> int:
    """Return the root of ``value``; raise ValueError unless it is a square number above 0."""
    with suppress(ValueError):
        side = math.isqrt(check_integer(name, value))
        if side**2 == value:
            return side
    raise ValueError(f'{name} must be a square number, got {value!r}')


def check_rate(name: str, value: Any) -> float:
    """Return ``value``; raise ValueError unless it is a number from 0 to 1, as of dropout."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not 0 <= float(value) <= 1:
        raise ValueError(f'{name} must be a number from 0 to 1, got {value!r}')
    return float(value)


def check_heads(embed_dims: int, num_heads: int) -> int:
    """Return the head dim; raise ValueError unless the heads divide the channels."""
    check_integer('embed_dims', embed_dims)
    if embed_dims % check_integer('num_heads', num_heads):
        raise ValueError(
            f'embed_dims={embed_dims} must be a positive multiple of num_heads={num_heads}'
        )
    return embed_dims // num_heads


def check_rotary_dim(head_dim: int, name: str = 'head_dim') -> None:
    """Raise ValueError unless ``head_dim`` is a multiple of 4, as 2D rotary position needs."""
    if head_dim < 4 or head_dim % 4:
        raise ValueError(
            f'{name} must be a multiple of 4 for 2D rotary position (pairs of channels for rows '
            f'and for columns), got {head_dim}'
        )


def check_shared_rotary(channels: int, num_heads: int) -> None:
    """Raise ValueError unless 2D rotary position can run over all channels, before the heads."""
    if channels % 4 or channels // num_heads % 2:
        raise ValueError(
            'rotary position over all channels needs a multiple of 4 channels and an even number '
            f'per head (pairs of channels), got {channels} channels in {num_heads} heads: set '
            'another embed_dims or num_heads, or rotary=False'
        )


def check_padding_mask(mask: Mask, batch: int, num_tokens: int) -> None:
    """Raise TypeError or ValueError unless ``mask`` is None or a (B, N) bool tensor."""
    if mask is None:
        return
    kind = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
    if str(kind) != 'torch.bool':
        raise TypeError(f'key_padding_mask must be bool (True = padding), got {kind}')
    if tuple(mask.shape) != (batch, num_tokens):
        raise ValueError(
            f'key_padding_mask must have shape (B, N) = ({batch}, {num_tokens}), '
            f'got {tuple(mask.shape)}'
        )


def check_floating_point(name: str, x: Tensor) -> None:
    """Raise ValueError unless the dtype of a tensor is a floating point type."""
    if not x.is_floating_point():
        raise ValueError(f'{name} must have a floating point dtype, got {x.dtype}')


def check_qkv(
    q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Mask, cross: Optional[bool] = None
) -> None:
    """Raise ValueError unless q and k are (B, heads, N, d) and v is (B, heads, N, d_v).

    With ``cross``, keys and values have M tokens; None for an operator without this option.
    """
    check_floating_point('q', q)
    of_q, of_k, of_v = q.shape, k.shape, v.shape
    if len(of_q) != 4:
        raise ValueError(f'q must have shape (B, heads, N, d), got {tuple(of_q)}')
    if not of_q[2]:
        raise ValueError(f'q has no tokens: its shape (B, heads, N, d) is {tuple(of_q)}')
    like = of_q
    if cross and len(of_k) == 4:
        if not of_k[2]:
            raise ValueError(f'k has no tokens: its shape (B, heads, M, d) is {tuple(of_k)}')
        like = (*of_q[:2], of_k[2], of_q[3])
    if of_k != like:
        like_q = len(of_k) == 4 and (*of_k[:2], of_k[3]) == (*of_q[:2], of_q[3])
        other = cross is False and like_q
        raise ValueError(
            f'k has shape {tuple(of_k)}, q has {tuple(of_q)}'
            + ('; cross=True takes keys other than the tokens of q' if other else '')
        )
    if of_v != like and (len(of_v) != 4 or of_v[:3] != like[:3]):
        raise ValueError(
            f'v must have shape (B, heads, N, d_v) = ({", ".join(map(str, like[:3]))}, d_v), '
            f'got {tuple(of_v)}'
        )
    for name, x in (('k', k), ('v', v)):
        if x.dtype != q.dtype or x.device != q.device:
            raise ValueError(f'{name} is {x.dtype} on {x.device}, q is {q.dtype} on {q.device}')
    if key_padding_mask is None:
        return
    check_padding_mask(key_padding_mask, of_k[0], of_k[2])
    if key_padding_mask.device != q.device:
        raise ValueError(f'key_padding_mask is on {key_padding_mask.device}, q is on {q.device}')
