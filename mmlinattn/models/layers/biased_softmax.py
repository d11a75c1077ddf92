"""Softmax attention with a learnt relative position bias."""

from typing import Sequence, Union

import torch
from mmengine.registry import MODELS
from torch import Tensor

from ...ops.common.checks import check_sides
from .relative_position_bias import RelativePositionBias
from .softmax import SoftmaxAttention, softmax_attention
from .token_layout import TokenLayout


@MODELS.register_module()
class BiasedSoftmaxAttention(SoftmaxAttention):
    """Softmax attention over the full map with a learnt bias per head and relative position.

    ViL (Zhang et al., ICCV 2021) with relative positions uses it in the last two stages. The bias
    takes N x N memory.

    Args:
        map_size: side, or (height, width), of the map that the bias table covers. Larger distances
            use the bias of the largest distance in the table.
        num_extra_tokens: number of extra tokens (such as a class token) with a separate bias, see
            :class:`RelativePositionBias`.
        embed_dims, num_heads, kwargs: options of :class:`SoftmaxAttention`.

    Raises:
        ValueError: ``map_size`` is not one or two positive integers, ``num_extra_tokens`` is not
            an integer of at least 0.

    Example:
        >>> attn = BiasedSoftmaxAttention(embed_dims=32, num_heads=4, map_size=(5, 6))
        >>> attn(torch.randn(2, 30, 32), hw_shape=(5, 6)).shape
        torch.Size([2, 30, 32])
    """

    needs_map = True
    cross_values = None
    backbone_options = (*SoftmaxAttention.backbone_options, 'map_size', 'num_extra_tokens')

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        map_size: Union[int, Sequence[int]] = 14,
        num_extra_tokens: int = 0,
        **kwargs,
    ) -> None:
        super().__init__(embed_dims, num_heads, **kwargs)
        height, width = check_sides(map_size, 'map_size')
        self.relative = RelativePositionBias(num_heads, (height - 1, width - 1), num_extra_tokens)

    def check_extra_tokens(self, num_extra_tokens: int) -> None:
        super().check_extra_tokens(num_extra_tokens)
        self.relative.check_extra_tokens(num_extra_tokens)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout) -> Tensor:
        dropout = self.attn_drop if self.training else 0.0
        axes = (torch.arange(size, device=q.device) for size in layout.hw_shape)
        rows, columns = (axis[:, None] - axis for axis in axes)
        bias = self.relative.map_bias(rows, columns).flatten(3).flatten(1, 2)  # [h, N, N]
        extra = layout.num_extra_tokens
        if extra:
            count = bias.shape[-1]
            extra_keys = self.relative.extra_key_bias(extra).expand(-1, count, -1)
            map_queries = torch.cat([extra_keys, bias], -1)
            bias = torch.cat([self.relative.extra_query_bias(extra, count), map_queries], 1)
        bias = bias[None].to(q.dtype)
        return softmax_attention(q, k, v, layout.key_padding_mask, bias=bias, dropout=dropout)
