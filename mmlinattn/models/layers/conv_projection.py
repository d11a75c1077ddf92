"""Softmax attention with convolutional projections, as in CvT."""

from collections import OrderedDict
from typing import Optional

import torch
from mmengine.registry import MODELS
from torch import Tensor, nn

from .base import BaseAttention, Projected, TokenLayout
from .softmax import SoftmaxAttention
from .token_layout import convolve_tokens

KV_STRIDE = 2  # of keys and values


@MODELS.register_module()
class ConvProjectionAttention(SoftmaxAttention):
    """Softmax attention of CvT (Wu et al., ICCV 2021, section 3.2) with convolutional projections.

    Queries, keys and values each pass a depth-wise 3x3 convolution and batch norm before the linear
    projection. The convolutions of keys and values have a stride of 2.

    Logits are scaled by C^-0.5, as in the released code, not by the head dim. Padded tokens count
    as 0 in the convolutions; a key is masked if the token at its centre is padding. Extra tokens
    (such as a class token) skip the convolutions.

    Args:
        embed_dims, num_heads, kwargs: options of :class:`SoftmaxAttention` but rotary, lepe, gate.

    Example:
        >>> attn = ConvProjectionAttention(embed_dims=32, num_heads=4)
        >>> attn(torch.randn(2, 1 + 5 * 6, 32), hw_shape=(5, 6), num_extra_tokens=1).shape
        torch.Size([2, 31, 32])
    """

    needs_map = True
    backbone_options = BaseAttention.backbone_options
    cross_values = None
    unsupported_options = ('rotary', 'lepe', 'gate')

    def __init__(self, embed_dims: int, num_heads: int, **kwargs) -> None:
        super().__init__(embed_dims, num_heads, **kwargs)
        self.conv_q = _convolution(embed_dims, 1)
        self.conv_k = _convolution(embed_dims, KV_STRIDE)
        self.conv_v = _convolution(embed_dims, KV_STRIDE)

    def project(self, x: Tensor, query_pos: Optional[Tensor], layout: TokenLayout) -> Projected:
        with_pos = x if query_pos is None else x + query_pos
        q, k, v = self.project_parts(
            (convolve_tokens(self.conv_q, with_pos, layout), 1),
            (convolve_tokens(self.conv_k, with_pos, layout), 1),
            (convolve_tokens(self.conv_v, x, layout), 1),
        )
        return q, k, v, None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout) -> Tensor:
        mask = layout.key_padding_mask
        if mask is not None:
            extra, mask = layout.split_extra(mask)
            centres = mask.unflatten(1, layout.hw_shape)[:, ::KV_STRIDE, ::KV_STRIDE]
            mask = torch.cat([extra, centres.flatten(1)], 1)
        # SDPA scales by (C / heads)^-0.5.
        layout = TokenLayout(layout.hw_shape, mask)
        return super().attend(q * self.num_heads**-0.5, k, v, layout)


def _convolution(channels: int, stride: int) -> nn.Sequential:
    conv = nn.Conv2d(channels, channels, 3, stride, padding=1, groups=channels, bias=False)
    return nn.Sequential(OrderedDict(conv=conv, bn=nn.BatchNorm2d(channels)))
