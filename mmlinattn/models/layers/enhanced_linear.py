"""Multi-scale ReLU linear attention of EfficientViT as a layer."""

from typing import Optional, Sequence

import torch
from mmengine.registry import MODELS
from torch import Tensor, nn

from ...ops import linear_attention
from ...utils import check_integer, check_number
from .base import BaseAttention, Projected, TokenLayout
from .token_layout import map_to_tokens, unpadded_map


@MODELS.register_module()
class EnhancedLinearAttention(BaseAttention):
    """Multi-scale linear attention, "EfficientViT: Multi-Scale Linear Attention for High-Resolution
    Dense Prediction" (Cai et al., ICCV 2023), linear in the number of tokens.

    For each scale, a depth-wise convolution aggregates queries, keys and values from neighbours. A
    1x1 convolution within q, k or v of each head follows. Each scale adds heads of ReLU
    linear attention; one projection maps all of them back to C channels. Padded tokens are 0 for
    the convolutions. The backbone provides the depth-wise convolution of the paper's feed-forward
    layer: :class:`mmlinattn.models.layers.MixFFN`, :class:`mmlinattn.models.layers.ConvFFN`.

    Args:
        scales: odd kernel sizes of the aggregations, in addition to the tokens; may be empty.
        eps: added to the normaliser. The release uses 1e-15, which is possible here, too: sums are
            in float32.
        embed_dims, num_heads, kwargs: options of :class:`BaseAttention` but rotary, lepe and gate.
            Extra tokens are not supported.

    Raises:
        ValueError: a scale is not an odd positive integer.

    Example:
        >>> attn = EnhancedLinearAttention(embed_dims=64, num_heads=2)
        >>> attn(torch.randn(2, 12 * 20, 64), hw_shape=(12, 20)).shape
        torch.Size([2, 240, 64])
    """

    needs_map = True
    supports_extra_tokens = False
    unsupported_options = ('rotary', 'lepe', 'gate')

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        scales: Sequence[int] = (5,),
        eps: float = 1e-6,
        **kwargs,
    ) -> None:
        super().__init__(embed_dims, num_heads, **kwargs)
        is_list = isinstance(scales, (list, tuple))
        if not is_list or not all(check_integer('scales', scale) % 2 for scale in scales):
            raise ValueError(f'scales must be a list of odd kernel sizes, got {scales!r}')
        self.eps = check_number('eps', eps)
        width = 3 * embed_dims
        self.aggregations = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width, width, scale, padding=scale // 2, groups=width, bias=False),
                nn.Conv2d(width, width, 1, groups=3 * num_heads, bias=False),
            )
            for scale in scales
        )
        bias = self.proj.bias is not None
        self.proj = nn.Linear(embed_dims * (1 + len(scales)), embed_dims, bias=bias)

    def project(self, x: Tensor, query_pos: Optional[Tensor], layout: TokenLayout) -> Projected:
        qkv = torch.cat(super().project(x, query_pos, layout)[:3], -1)
        maps = unpadded_map(qkv, layout)
        maps = [maps, *(aggregate(maps) for aggregate in self.aggregations)]
        scales = [*map(map_to_tokens, maps)]
        q, k, v = (torch.cat(part, -1) for part in zip(*(scale.chunk(3, -1) for scale in scales)))
        return q, k, v, None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout) -> Tensor:
        return linear_attention(
            q, k, v, key_padding_mask=layout.key_padding_mask, eps=self.eps, feature_map='relu',
            backend=self.backend,
        )  # fmt: skip
