"""Softmax attention with a learnt bias for each relative position."""

from typing import Sequence, Union

import torch
from mmengine.registry import MODELS
from torch import Tensor

from ...ops.common.checks import check_sides
from .attention_info import AttentionCard
from .base import TokenMap
from .relative_position_bias import RelativeBias
from .softmax import SoftmaxAttention, softmax_attention


@MODELS.register_module()
class RelativeSoftmaxAttention(SoftmaxAttention):
    """Softmax attention over the whole map whose logits get a learnt number for each head and
    relative position of query and key, as in the last two stages of ViL (Zhang et al., ICCV 2021)
    with relative positions. The bias is N x N in memory.

    Args:
        embed_dims, num_heads: channels and heads.
        map_size: side, or (height, width), of the map whose relative positions have a bias each.
            On a larger map those further apart have the bias of the furthest.
        num_extra_tokens: extra tokens with biases of their own, see :class:`RelativeBias`.
        others: see :class:`SoftmaxAttention`.

    Raises:
        ValueError: a map size that is not one or two positive integers, a number of extra tokens
            that is no integer of at least 0, and those of :class:`BaseAttention`.

    Example:
        >>> attn = RelativeSoftmaxAttention(embed_dims=32, num_heads=4, map_size=(5, 6))
        >>> attn(torch.randn(2, 30, 32), hw_shape=(5, 6)).shape
        torch.Size([2, 30, 32])
    """

    card = AttentionCard(
        formula='sum_j softmax_j(q_i . k_j/sqrt d + b_ij) v_j, b_ij of the relative position',
        time='O(N^2 d)',
        memory='O(N^2)',
        source='Liu et al., Swin, ICCV 2021; Zhang et al., ViL, ICCV 2021',
        use="the last stages of ViL's released models with relative positions; quadratic",
        map=True,
    )
    host_options = (*SoftmaxAttention.host_options, 'map_size', 'num_extra_tokens')

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
        self.relative = RelativeBias(num_heads, (height - 1, width - 1), num_extra_tokens)

    def check_extra_tokens(self, num_extra_tokens: int) -> None:
        super().check_extra_tokens(num_extra_tokens)
        self.relative.check_extra_tokens(num_extra_tokens)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, tokens: TokenMap) -> Tensor:
        dropout = self.attn_drop if self.training else 0.0
        places = (torch.arange(size, device=q.device) for size in tokens.hw_shape)
        rows, columns = (place[:, None] - place for place in places)
        bias = self.relative.of_map(rows, columns).flatten(3).flatten(1, 2)  # [h, N, N]
        extra = tokens.num_extra_tokens
        if extra:
            count = bias.shape[-1]
            of_map = torch.cat([self.relative.to_extra(extra).expand(-1, count, -1), bias], -1)
            bias = torch.cat([self.relative.from_extra(extra, count), of_map], 1)
        bias = bias[None].to(q.dtype)
        return softmax_attention(q, k, v, tokens.key_padding_mask, bias=bias, dropout=dropout)
