"""Softmax attention on spatially reduced keys and values, as in SegFormer."""

from typing import Optional, Tuple

import torch
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor, nn

from .attention_info import AttentionCard
from .base import BaseAttention, TokenMap, map_to_tokens, tokens_to_map
from .softmax import softmax_attention


@MODELS.register_module()
class EfficientSoftmaxAttention(BaseAttention):
    """SegFormer's efficient self-attention (Xie et al., NeurIPS 2021, section 3.1): keys and
    values come from the map reduced by a convolution of kernel and stride ``sr_ratio``.

    Rows and columns that do not fill a cell are dropped from keys and values, as in the released
    code; a map smaller than one cell is padded with zeros to one. Padded tokens count as 0 in their
    cell; a cell of nothing but padding is masked. Extra tokens are not reduced: they are keys and
    values beside the cells.

    Args:
        embed_dims, num_heads: channels and heads.
        sr_ratio: spatial reduction R; 1 for plain softmax attention.
        attn_drop: dropout on the attention weights.
        qkv_bias, proj_bias, proj_drop, init_cfg: see :class:`BaseAttention`.

    Raises:
        ValueError: an ``sr_ratio`` below 1, and those of :class:`BaseAttention`.

    Example:
        >>> import torch
        >>> attn = EfficientSoftmaxAttention(embed_dims=32, num_heads=4, sr_ratio=2)
        >>> attn(torch.randn(2, 30, 32), hw_shape=(5, 6)).shape
        torch.Size([2, 30, 32])
    """

    card = AttentionCard(
        formula='softmax(q_i . k_j/sqrt d) v_j, k and v of cells of R x R tokens',
        time='O(N^2 d / R^2)',
        memory='O(N d)',
        source='Xie et al., SegFormer, NeurIPS 2021',
        use="SegFormer's own: released weights; quadratic",
        map=True,
    )

    projections = (*BaseAttention.projections, 'sr')
    host_options = (*BaseAttention.host_options, 'sr_ratio')
    backends = ('auto',)
    refused_options = ('rotary', 'lepe', 'gate')

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        sr_ratio: int = 1,
        attn_drop: float = 0.0,
        **kwargs,
    ) -> None:
        super().__init__(embed_dims, num_heads, **kwargs)
        if sr_ratio < 1:
            raise ValueError(f'sr_ratio must be at least 1, got {sr_ratio}')
        self.sr_ratio = sr_ratio
        self.attn_drop = attn_drop
        if sr_ratio > 1:
            self.sr = nn.Conv2d(embed_dims, embed_dims, sr_ratio, stride=sr_ratio)
            self.norm = nn.LayerNorm(embed_dims, eps=1e-6)

    def project(
        self, x: Tensor, query_pos: Optional[Tensor], tokens: TokenMap
    ) -> Tuple[Tensor, Tensor, Tensor, Optional[Tensor]]:
        if self.sr_ratio == 1:
            return super().project(x, query_pos, tokens)
        placed = x if query_pos is None else x + query_pos
        q = self.partial_projection(placed, 0, 1)
        reduced = self._reduce(placed, tokens)
        if query_pos is None:
            k, v = self.partial_projection(reduced, 1, 3).chunk(2, -1)
        else:
            k = self.partial_projection(reduced, 1, 2)
            v = self.partial_projection(self._reduce(x, tokens), 2, 3)
        return q, k, v, None

    def _reduce(self, x: Tensor, tokens: TokenMap) -> Tensor:
        """(B, E + N, C) to (B, E + N / R^2, C)."""
        if tokens.key_padding_mask is not None:
            x = x.masked_fill(tokens.key_padding_mask[..., None], 0)
        extra, x = tokens.split(x)
        x = self._at_least_a_cell(tokens_to_map(x, tokens.hw_shape))
        reduced = self.norm(map_to_tokens(self.sr(x)))
        return torch.cat([extra, reduced], 1) if tokens.num_extra_tokens else reduced

    def _at_least_a_cell(self, x: Tensor) -> Tensor:
        rows, columns = (max(0, self.sr_ratio - size) for size in x.shape[-2:])
        return F.pad(x, (0, columns, 0, rows)) if rows or columns else x

    def attend(self, q: Tensor, k: Tensor, v: Tensor, tokens: TokenMap) -> Tensor:
        mask = tokens.key_padding_mask
        if mask is not None and self.sr_ratio > 1:
            extra, mask = tokens.split(mask)
            keep = tokens_to_map(~mask[..., None], tokens.hw_shape).to(q.dtype)
            keep = F.max_pool2d(self._at_least_a_cell(keep), self.sr_ratio)
            mask = torch.cat([extra, keep.flatten(1) == 0], 1)
        dropout = self.attn_drop if self.training else 0.0
        return softmax_attention(q, k, v, mask, dropout=dropout)
