"""Softmax attention with spatially reduced keys and values, as in SegFormer and PVT."""

from typing import Optional

import torch
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor, nn

from ...ops.common.numerics import zero_padding
from ...utils import check_integer
from .base import BaseAttention, Projected, TokenLayout
from .softmax import SoftmaxAttention
from .token_layout import map_to_tokens, tokens_to_map


@MODELS.register_module()
class SpatialReductionAttention(SoftmaxAttention):
    """SegFormer's efficient self-attention (Xie et al., NeurIPS 2021, section 3.1).

    A convolution with kernel and stride ``sr_ratio`` reduces the map for keys and values. Rows and
    columns that do not fill a cell are dropped, as in the released code. A map smaller than one
    cell is padded with zeros. Padded tokens count as 0 in their cell; a cell of padding only is
    masked. Extra tokens (such as a class token) are keys and values without reduction.

    Args:
        sr_ratio: spatial reduction R; 1 for softmax attention without reduction.
        embed_dims, num_heads, kwargs: options of :class:`SoftmaxAttention` but rotary, lepe, gate.

    Raises:
        ValueError: ``sr_ratio`` is no positive integer.

    Example:
        >>> attn = SpatialReductionAttention(embed_dims=32, num_heads=4, sr_ratio=2)
        >>> attn(torch.randn(2, 30, 32), hw_shape=(5, 6)).shape
        torch.Size([2, 30, 32])
    """

    needs_map = True
    projections = (*BaseAttention.projections, 'sr')
    backbone_options = (*BaseAttention.backbone_options, 'sr_ratio')
    cross_values = None
    unsupported_options = ('rotary', 'lepe', 'gate')

    def __init__(self, embed_dims: int, num_heads: int, sr_ratio: int = 1, **kwargs) -> None:
        super().__init__(embed_dims, num_heads, **kwargs)
        self.sr_ratio = sr_ratio = check_integer('sr_ratio', sr_ratio)
        if sr_ratio > 1:
            self.sr = nn.Conv2d(embed_dims, embed_dims, sr_ratio, stride=sr_ratio)
            self.norm = nn.LayerNorm(embed_dims, eps=1e-5)

    def project(self, x: Tensor, query_pos: Optional[Tensor], layout: TokenLayout) -> Projected:
        if self.sr_ratio == 1:
            return super().project(x, query_pos, layout)
        with_pos = x if query_pos is None else x + query_pos
        reduced = self._reduce(with_pos, layout)
        if query_pos is None:
            q, kv = self.project_parts((with_pos, 1), (reduced, 2))
            k, v = kv.chunk(2, -1)
        else:
            q, k, v = self.project_parts((with_pos, 1), (reduced, 1), (self._reduce(x, layout), 1))
        return q, k, v, None

    def _reduce(self, x: Tensor, layout: TokenLayout) -> Tensor:
        """Reduce (B, E + N, C) to (B, E + N / R^2, C)."""
        extra, x = None, zero_padding(x, layout.key_padding_mask)
        if layout.num_extra_tokens:
            extra, x = layout.split_extra(x)
        x = self._pad_to_one_cell(tokens_to_map(x, layout.hw_shape))
        reduced = self.norm(map_to_tokens(self.sr(x)))
        return reduced if extra is None else torch.cat([extra, reduced], 1)

    def _pad_to_one_cell(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        if height >= self.sr_ratio and width >= self.sr_ratio:
            return x
        rows, columns = max(0, self.sr_ratio - height), max(0, self.sr_ratio - width)
        return F.pad(x, (0, columns, 0, rows))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout) -> Tensor:
        mask = layout.key_padding_mask
        if mask is not None and self.sr_ratio > 1:
            extra, mask = layout.split_extra(mask)
            keep = tokens_to_map(~mask[..., None], layout.hw_shape).to(q.dtype)
            keep = F.max_pool2d(self._pad_to_one_cell(keep), self.sr_ratio)
            mask = torch.cat([extra, keep.flatten(1) == 0], 1)
        return super().attend(q, k, v, TokenLayout(layout.hw_shape, mask))
