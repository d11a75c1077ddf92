"""Token layout: map shape, padding and positions of tokens, and tokens as maps."""

from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple, Union

import torch
import torch.nn.functional as F
from torch import Tensor

from ...ops.common.numerics import may_be_symbolic, zero_padding
from ...ops.common.packed import PackedShapes
from ...ops.common.rotary import Rotary

HwShape = Union[Sequence[int], PackedShapes]


class TokenLayout(NamedTuple):
    """Map shape, padding and positions of a token sequence.

    Extra tokens (class token, registers) come before the tokens of the map and have no position.
    """

    hw_shape: Tuple[int, int]  # (H, W) of the map, row-major; of packed images (1, T)
    key_padding_mask: Optional[Tensor] = None  # [B, E + N] bool, True = padding
    rotary: Optional[Rotary] = None  # only for an attention with applies_rotary
    num_extra_tokens: int = 0  # E
    cross: bool = False  # the keys are other tokens than the queries; the mask is theirs
    packed: Optional[PackedShapes] = None  # only for an attention with attends_packed

    def images(self) -> 'List[TokenLayout]':
        """Return the layout of each of the packed images."""
        packed, rotary = self.packed, self.rotary
        assert packed is not None
        rotaries = [None] * len(packed.lengths) if rotary is None else rotary.images()
        return [
            TokenLayout(shape, None, position, self.num_extra_tokens)
            for shape, position in zip(packed.hw_shapes, rotaries)
        ]

    def split_extra(self, x: Tensor, dim: int = 1) -> Tuple[Tensor, Tensor]:
        """Split x along ``dim`` into extra tokens and map tokens; both are views."""
        extra = self.num_extra_tokens
        return x.narrow(dim, 0, extra), x.narrow(dim, extra, x.shape[dim] - extra)

    def without_extra_tokens(self) -> 'TokenLayout':
        """Return the layout of the map tokens alone."""
        mask = self.key_padding_mask
        mask = mask if mask is None else self.split_extra(mask)[1]
        rotary = self.rotary
        if rotary is not None:
            rotary = rotary.of_map(rotary.hw_shape, 0)
        return TokenLayout(self.hw_shape, mask, rotary, 0)


def split_images(x: Tensor, hw_shape: HwShape, num_extra: int) -> List[Tuple[Tensor, Any]]:
    """Return tokens (B, E + N, C) with their (H, W): of each packed image, or of all at once."""
    if not isinstance(hw_shape, PackedShapes):
        return [(x, hw_shape)]
    return [*zip(hw_shape.with_extra_tokens(num_extra).split(x), hw_shape.hw_shapes)]


def tokens_to_map(x: Tensor, hw_shape: Sequence[int]) -> Tensor:
    """Return (B, N, C) tokens as a (B, C, H, W) map, a channels_last view without a copy."""
    height, width = hw_shape
    return x.view(x.shape[0], height, width, x.shape[2]).permute(0, 3, 1, 2)


def map_to_tokens(x: Tensor) -> Tensor:
    """Return a (B, C, H, W) map as (B, N, C) tokens, a view if the map is channels_last."""
    tokens = x.permute(0, 2, 3, 1).flatten(1, 2)
    if torch.compiler.is_compiling() and may_be_symbolic(*x.shape[2:]):
        # torch.export cannot prove the strides of the view. The exported graph does not copy.
        return tokens.clone(memory_format=torch.contiguous_format)
    return tokens


def convolve_tokens(conv: Callable[[Tensor], Tensor], x: Tensor, layout: TokenLayout) -> Tensor:
    """Apply ``conv`` to the map of tokens (B, E + N, C); padding is 0, extra tokens stay."""
    maps = map_to_tokens(conv(unpadded_map(x, layout)))
    if not layout.num_extra_tokens:
        return maps
    extra = layout.split_extra(zero_padding(x, layout.key_padding_mask))[0]
    return torch.cat([extra.to(maps.dtype), maps], 1)


def local_position(conv: Callable[[Tensor], Tensor], v: Tensor, layout: TokenLayout) -> Tensor:
    """Apply ``conv`` to the map of values (B, E + N, C); padding is 0, extra tokens become 0."""
    if layout.packed is not None:
        images = zip(layout.packed.split(v), layout.images())
        return torch.cat([local_position(conv, *image) for image in images], 1)
    local = map_to_tokens(conv(unpadded_map(v, layout)))
    # Extra tokens have no local position.
    return F.pad(local, (0, 0, layout.num_extra_tokens, 0)) if layout.num_extra_tokens else local


def unpadded_map(x: Tensor, layout: TokenLayout) -> Tensor:
    """Return the map of tokens (B, E + N, C) without extra tokens; padding is 0."""
    mask = layout.key_padding_mask
    if layout.num_extra_tokens:
        x = layout.split_extra(x)[1]
        mask = mask if mask is None else layout.split_extra(mask)[1]
    maps = tokens_to_map(x, layout.hw_shape)
    if mask is None:
        return maps
    # Not tokens: torch 2.11 cannot compile a view of any size that the backward pass reads.
    return maps.masked_fill(mask.unflatten(1, layout.hw_shape)[:, None], 0)


def neighbours(x: Tensor) -> List[Tensor]:
    """Return maps of the 3 x 3 neighbours of each token of a map (B, C, H, W); 0 outside of it."""
    height, width = x.shape[2:]
    x = F.pad(x, (1, 1, 1, 1))
    return [x[:, :, i : i + height, j : j + width] for i in range(3) for j in range(3)]


def require_static_size(name: str, hw_shape: Sequence[int], reason: str) -> None:
    """Raise ValueError if height or width may be symbolic, as in ``torch.export``.

    The message has the name of the module and the reason why it needs a static size.
    """
    if torch.compiler.is_compiling() and may_be_symbolic(*hw_shape):
        raise ValueError(
            f'{name} cannot be exported with dynamic height and width: {reason}. Export it at a '
            'fixed size (mmlinattn export --static; your own torch.export without strict=True, '
            'which hides that it is fixed), or use another attention (docs/export.md)'
        )
