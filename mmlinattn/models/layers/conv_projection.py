"""Softmax attention with convolutional projections, as in CvT."""

from collections import OrderedDict
from typing import Optional, Tuple

import torch
from mmengine.registry import MODELS
from torch import Tensor, nn

from .attention_info import AttentionCard
from .base import BaseAttention, TokenMap, map_to_tokens, tokens_to_map
from .softmax import softmax_attention


@MODELS.register_module()
class ConvProjectionAttention(BaseAttention):
    """CvT's attention (Wu et al., ICCV 2021, section 3.2): queries, keys and values go through a
    depth-wise 3x3 convolution and batch norm each before the linear projection, keys and values
    with a stride; then softmax attention.

    Logits are scaled by C^-0.5, as in the released code, not by the width of a head. Padded tokens
    count as 0 in the convolutions; a key is masked if the token in its middle is padding. Extra
    tokens go through no convolution.

    Args:
        embed_dims, num_heads: channels and heads.
        kv_stride: stride of keys and values.
        attn_drop: dropout on the attention weights.
        qkv_bias, proj_bias, proj_drop, init_cfg: see :class:`BaseAttention`.

    Raises:
        ValueError: a stride below 1, and those of :class:`BaseAttention`.

    Example:
        >>> import torch
        >>> attn = ConvProjectionAttention(embed_dims=32, num_heads=4)
        >>> attn(torch.randn(2, 1 + 5 * 6, 32), hw_shape=(5, 6), num_extra_tokens=1).shape
        torch.Size([2, 31, 32])
    """

    card = AttentionCard(
        formula='softmax(q_i . k_j/sqrt C) v_j of depth-wise convolutions of x, k and v strided',
        time='O(N^2 d / 4)',
        memory='O(N d)',
        source='Wu et al., CvT, ICCV 2021',
        use="CvT's own: released weights; quadratic",
        map=True,
    )

    backends = ('auto',)
    refused_options = ('rotary', 'lepe', 'gate')

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        kv_stride: int = 2,
        attn_drop: float = 0.0,
        **kwargs,
    ) -> None:
        super().__init__(embed_dims, num_heads, **kwargs)
        if type(kv_stride) is not int or kv_stride < 1:
            raise ValueError(f'kv_stride must be a positive integer, got {kv_stride!r}')
        self.kv_stride = kv_stride
        self.attn_drop = attn_drop
        self.conv_q = _convolution(embed_dims, 1)
        self.conv_k = _convolution(embed_dims, kv_stride)
        self.conv_v = _convolution(embed_dims, kv_stride)

    def project(
        self, x: Tensor, query_pos: Optional[Tensor], tokens: TokenMap
    ) -> Tuple[Tensor, Tensor, Tensor, Optional[Tensor]]:
        placed = x if query_pos is None else x + query_pos
        q, k, v = (
            self.partial_projection(self._convolve(conv, of, tokens), i, i + 1)
            for i, (conv, of) in enumerate(
                [(self.conv_q, placed), (self.conv_k, placed), (self.conv_v, x)]
            )
        )
        return q, k, v, None

    def _convolve(self, conv: nn.Module, x: Tensor, tokens: TokenMap) -> Tensor:
        """(B, E + N, C) to as many tokens as the stride leaves, the extra ones as they are."""
        if tokens.key_padding_mask is not None:
            x = x.masked_fill(tokens.key_padding_mask[..., None], 0)
        extra, x = tokens.split(x)
        x = map_to_tokens(conv(tokens_to_map(x, tokens.hw_shape)))
        return torch.cat([extra.to(x.dtype), x], 1) if tokens.num_extra_tokens else x

    def attend(self, q: Tensor, k: Tensor, v: Tensor, tokens: TokenMap) -> Tensor:
        mask = tokens.key_padding_mask
        if mask is not None:
            extra, mask = tokens.split(mask)
            middle = mask.unflatten(1, tokens.hw_shape)[:, :: self.kv_stride, :: self.kv_stride]
            mask = torch.cat([extra, middle.flatten(1)], 1)
        dropout = self.attn_drop if self.training else 0.0
        # SDPA itself scales by the width of a head.
        return softmax_attention(q * self.num_heads**-0.5, k, v, mask, dropout=dropout)


def _convolution(channels: int, stride: int) -> nn.Sequential:
    conv = nn.Conv2d(channels, channels, 3, stride, padding=1, groups=channels, bias=False)
    return nn.Sequential(OrderedDict(conv=conv, bn=nn.BatchNorm2d(channels)))
