"""Argument checks of the attentions: one error with argument, value and cure."""

from numbers import Integral
from typing import TYPE_CHECKING, Any, Optional, Tuple

from torch import Tensor, nn

from ...ops.common.checks import check_hw_shape
from ...ops.common.numerics import may_be_symbolic
from ...ops.common.packed import PackedShapes, check_packed
from ...utils import check_integer
from .token_layout import HwShape

if TYPE_CHECKING:
    from .base import BaseAttention

GATES = (None, 'proj', 'identity', 'tanh')


def check_options(attn: 'BaseAttention', rotary: Any, lepe: Any, gate: Any, backend: Any) -> None:
    """Raise ValueError unless the options of :class:`BaseAttention` are valid."""
    options = dict(rotary=(rotary, False), lepe=(lepe, 0), gate=(gate, None))
    for name in attn.unsupported_options:
        value, off = options[name]
        if value not in (off, None):
            raise ValueError(
                f'{type(attn).__name__} does not support {name}, got {value!r}: set '
                f'{name}={off} in its attn_cfg, or take another attention'
            )
    if rotary is not None and not isinstance(rotary, (bool, dict)):
        raise ValueError(
            f'rotary must be True, False or a dict of RotaryCoordinates, got {rotary!r}'
        )
    if backend not in attn.backends:
        raise ValueError(f'backend must be one of {attn.backends}, got {backend!r}')
    if gate not in GATES:
        raise ValueError(f'gate must be one of {GATES}, got {gate!r}')
    is_size = isinstance(lepe, Integral) and not isinstance(lepe, bool) and int(lepe) >= 0
    if not is_size or (lepe and lepe % 2 == 0):
        raise ValueError(f'lepe must be 0 or an odd kernel size, got {lepe!r}')


def check_tokens(attn: 'BaseAttention', x: Tensor, query_pos: Optional[Tensor]) -> None:
    """Raise ValueError unless x and ``query_pos`` have the shape (B, E + N, C)."""
    if x.dim() != 3 or x.shape[-1] != attn.embed_dims:
        raise ValueError(f'x must have shape (B, N, {attn.embed_dims}), got {tuple(x.shape)}')
    if query_pos is not None and query_pos.shape != x.shape:
        raise ValueError(
            f'query_pos must have the shape of x {tuple(x.shape)}, got {tuple(query_pos.shape)}'
        )


def check_shape(
    attn: 'BaseAttention', x: Tensor, hw_shape: HwShape, mask: Optional[Tensor], num_extra: int
) -> Tuple[Tuple[int, int], Optional[PackedShapes]]:
    """Return the checked (H, W) of a map, and packed shapes or None; see :class:`TokenLayout`."""
    if not isinstance(hw_shape, PackedShapes):
        return check_hw_shape(x.shape[1] - num_extra, hw_shape), None
    reason = attn.packed_unsupported_reason()
    if reason is not None:
        raise ValueError(
            f'{type(attn).__name__} does not support packed images: {reason}. Pad the images '
            'to one size, or call it for each image'
        )
    packed = hw_shape.with_extra_tokens(num_extra)
    check_packed(packed, x, mask)
    return (1, packed.num_tokens), packed


def check_output(attn: 'BaseAttention', out: Any, q: Tensor, by_proj: bool) -> None:
    """Raise ValueError unless ``attend`` has returned one vector for each query.

    With ``by_proj``, ``attn.proj`` takes the output, which gives the number of channels.
    """
    if may_be_symbolic(*q.shape):
        return
    is_right = isinstance(out, Tensor) and out.dim() == 4 and out.shape[::2] == q.shape[::2]
    width = attn.proj.in_features if by_proj and type(attn.proj) is nn.Linear else None
    if not is_right or width not in (None, out.shape[1] * out.shape[3]):
        found = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        channels = f', heads * d = {width}' if width else ''
        raise ValueError(
            f'{type(attn).__name__}.attend() must return (B, heads, E + N, d) with '
            f'B = {q.shape[0]}, E + N = {q.shape[2]}{channels}, got {found}'
        )


def check_supports_extra_tokens(attn: 'BaseAttention', num_extra_tokens: int) -> None:
    """Raise ValueError unless the attention supports this number of extra tokens."""
    check_integer('num_extra_tokens', num_extra_tokens, least=0)
    if num_extra_tokens and not attn.supports_extra_tokens:
        raise ValueError(
            f'{type(attn).__name__} does not support extra tokens, such as a class token, '
            f'which have no position on the map; got {num_extra_tokens=}. Take another '
            'attention, or a backbone without them: with_cls_token=False (in ViT also '
            'num_registers=0, or cls_token_from=N, from layer N on), global_tokens=0 in the '
            'arch of ViL'
        )
