"""Packed images in an attention that attends to one image at a time."""

from typing import TYPE_CHECKING, Any, Optional, Sequence

import torch
from torch import Tensor

from .token_layout import TokenLayout

if TYPE_CHECKING:
    from .base import BaseAttention


def attends_at_once(attn: 'BaseAttention') -> bool:
    """Return True if :meth:`BaseAttention.attend` takes all packed images in one call.

    A subclass that overrides ``attend`` or ``project`` and not ``attends_packed`` does not.
    """
    kinds = type(attn).__mro__
    owner, *others = (
        next(kind for kind in kinds if name in vars(kind))
        for name in ('attends_packed', 'attend', 'project')
    )
    return all(issubclass(owner, other) for other in others) and attn.attends_packed()


def forward_by_image(
    attn: 'BaseAttention',
    x: Tensor,
    query_pos: Optional[Tensor],
    layout: TokenLayout,
    *more: Sequence[Any],
) -> Tensor:
    """Apply the attention, with ``more`` inputs of each, to each of the packed images."""
    packed = layout.packed
    assert packed is not None
    parts = packed.split(x)
    positions = [None] * len(parts) if query_pos is None else packed.split(query_pos)
    images = zip(parts, packed.hw_shapes, positions, *more)
    extra = packed.num_extra_tokens
    return torch.cat([attn(x, hw, pos, None, extra, *rest) for x, hw, pos, *rest in images], 1)


def attend_by_image(
    attn: 'BaseAttention', q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout
) -> Tensor:
    """Return :meth:`BaseAttention.attend` of each of the packed images, (1, heads, T, d)."""
    assert layout.packed is not None
    images = zip(*(layout.packed.split(x, 2) for x in (q, k, v)), layout.images())
    # Concatenated in the memory layout that the output projection reads.
    return torch.cat([attn.attend(*image).transpose(1, 2) for image in images], 1).transpose(1, 2)
