"""Scaled dot-product softmax attention, the quadratic baseline."""

from typing import Optional

import torch
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor

from ...ops.common.checks import check_padding_mask, check_rate
from ...ops.common.numerics import is_exporting
from .base import BaseAttention, TokenLayout
from .linear_projection import KeyBiaslessLinear


@MODELS.register_module()
class SoftmaxAttention(BaseAttention):
    """Scaled dot-product attention (Vaswani et al., "Attention Is All You Need", NeurIPS 2017).

    With ``rotary=True, lepe=5, gate='proj'``, the values that RAVLT provides, it is the attention
    of the last two stages of the released RAVLT models.

    Args:
        attn_drop: dropout on the attention weights.
        key_bias: give the keys a bias, if queries and values have one. DINOv3 has none.
        kwargs: options of :class:`BaseAttention`.

    Example:
        >>> attn = SoftmaxAttention(embed_dims=32, num_heads=4)
        >>> attn(torch.randn(2, 30, 32), hw_shape=(5, 6)).shape
        torch.Size([2, 30, 32])
    """

    backbone_options = (*BaseAttention.backbone_options, 'rotary', 'lepe', 'gate', 'key_bias')
    cross_values: Optional[str] = 'keys'
    backends = ('auto',)  # SDPA chooses its kernel itself

    def __init__(self, *args, attn_drop: float = 0.0, key_bias: bool = True, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.attn_drop = check_rate('attn_drop', attn_drop)
        if not key_bias and self.in_proj.bias is not None:
            parts = self.in_proj.out_features // self.embed_dims
            self.in_proj = KeyBiaslessLinear(self.embed_dims, parts)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout) -> Tensor:
        dropout = self.attn_drop if self.training else 0.0
        return softmax_attention(q, k, v, layout.key_padding_mask, dropout=dropout)


def softmax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_padding_mask: Optional[Tensor] = None,
    *,
    bias: Optional[Tensor] = None,
    dropout: float = 0.0,
) -> Tensor:
    """Compute torch's SDPA with a padding mask.

    A query whose keys are all padding yields 0, as in every attention of this package.

    Args:
        q, k, v: (B, heads, N, d), and (B, heads, M, d) for keys and values.
        key_padding_mask: (B, M) bool, True = padding.
        bias: added to the scaled logits, broadcastable to (B, heads, N, M).
        dropout: dropout rate on the attention weights.

    Returns:
        (B, heads, N, d).
    """
    if key_padding_mask is None:
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout)
        # The strides depend on the device, which an exported graph must not.
        return out.clone(memory_format=torch.contiguous_format) if is_exporting() else out
    check_padding_mask(key_padding_mask, k.shape[0], k.shape[2])
    # SDPA is undefined for rows without a key: attend everywhere there, then set them to 0.
    empty = key_padding_mask.all(-1)[:, None, None, None]  # [B, 1, 1, 1]
    visible = ~key_padding_mask[:, None, None] | empty  # [B, 1, 1, M]
    mask = visible if bias is None else bias.masked_fill(~visible, float('-inf'))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
    return out.masked_fill(empty, 0)
