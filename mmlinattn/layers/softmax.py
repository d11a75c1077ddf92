"""Softmax attention, the baseline."""

from typing import Optional, Tuple

import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor

from ..ops.common.checks import check_padding_mask
from ..ops.common.rotary import Rotary
from .base import BaseAttention


@MODELS.register_module()
class SoftmaxAttention(BaseAttention):
    """Scaled dot-product attention, with the options of every attention of this package.

    With ``rotary=True, lepe=5, gate='proj'`` it is the attention of the last two stages of the
    released RAVLT models.

    Args:
        attn_drop: dropout on the attention weights.
        others: see :class:`BaseAttention`.

    Raises:
        ValueError: see :class:`BaseAttention`.

    Example:
        >>> import torch
        >>> attn = SoftmaxAttention(embed_dims=32, num_heads=4)
        >>> attn(torch.randn(2, 30, 32), hw_shape=(5, 6)).shape
        torch.Size([2, 30, 32])
    """

    def __init__(self, *args, attn_drop: float = 0.0, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.attn_drop = attn_drop

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        hw_shape: Tuple[int, int],
        rotary: Optional[Rotary],
        key_padding_mask: Optional[Tensor],
    ) -> Tensor:
        return softmax_attention(
            q, k, v, key_padding_mask, self.attn_drop if self.training else 0.0
        )


def softmax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_padding_mask: Optional[Tensor] = None,
    dropout: float = 0.0,
) -> Tensor:
    """torch's SDPA on (B, heads, N, d) with a padding mask (B, M), True = padding.

    A query whose keys are all padding yields 0, as in every attention of this package.
    """
    if key_padding_mask is None:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
    check_padding_mask(key_padding_mask, k.shape[0], k.shape[2])
    # SDPA leaves rows without a key undefined: let them attend everywhere, then zero them.
    empty = key_padding_mask.all(-1)[:, None, None, None]  # [B, 1, 1, 1]
    visible = ~key_padding_mask[:, None, None] | empty  # [B, 1, 1, M]
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=visible, dropout_p=dropout)
    return out.masked_fill(empty, 0)
