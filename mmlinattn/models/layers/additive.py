"""Additive attention as a layer."""

from typing import Optional

import torch
from mmengine.registry import MODELS
from torch import Tensor, nn

from ...ops import additive_attention
from .base import BaseAttention, Projected, TokenLayout


@MODELS.register_module()
class AdditiveAttention(BaseAttention):
    """Additive attention, "Fast Vision Transformer via Additive Attention", linear in the number
    of tokens and of channels.

    The queries are also the values, as the parameter counts of the paper imply. The output
    projection is ``W_r`` of the paper; the queries are added to its output.

    Args:
        embed_dims, num_heads, kwargs: options of :class:`BaseAttention`.

    Raises:
        ValueError: ``gate`` is ``'proj'``.

    Example:
        >>> attn = AdditiveAttention(embed_dims=64, num_heads=2)
        >>> attn(torch.randn(2, 12 * 20, 64), hw_shape=(12, 20)).shape
        torch.Size([2, 240, 64])
    """

    cross_values = 'queries'

    def __init__(self, embed_dims: int, num_heads: int, **kwargs) -> None:
        super().__init__(embed_dims, num_heads, **kwargs)
        if self.gate == 'proj':
            raise ValueError("gate='proj' has no projection here: set another gate")
        self.in_proj = nn.Linear(embed_dims, 2 * embed_dims, bias=self.in_proj.bias is not None)
        self.w_q, self.w_k = (
            nn.Parameter(torch.empty(num_heads, self.head_dim).normal_()) for _ in range(2)
        )

    def project(self, x: Tensor, query_pos: Optional[Tensor], layout: TokenLayout) -> Projected:
        q, k = self.in_proj(x if query_pos is None else x + query_pos).chunk(2, -1)
        v = q if query_pos is None else self.project_parts((x, 1))[0]
        return q, k, v, self.unprojected_gate(x)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout) -> Tensor:
        return additive_attention(
            q, k, v, self.w_q, self.w_k, key_padding_mask=layout.key_padding_mask,
            cross=layout.cross, backend=self.backend,
        )  # fmt: skip

    def project_out(self, out: Tensor, q: Tensor) -> Tensor:
        return super().project_out(out, q) + q
