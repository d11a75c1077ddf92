"""Multi-scale ReLU linear attention of EfficientViT as a layer."""

from typing import Optional, Sequence, Tuple

import torch
from mmengine.registry import MODELS
from torch import Tensor, nn

from ...ops import linear_attention
from .attention_info import AttentionCard
from .base import BaseAttention, TokenMap, map_to_tokens, tokens_to_map


@MODELS.register_module()
class EnhancedLinearAttention(BaseAttention):
    """Multi-scale linear attention (Cai et al., "EfficientViT: Multi-Scale Linear Attention for
    High-Resolution Dense Prediction", ICCV 2023): linear in the number of tokens.

    For each scale, queries, keys and values are aggregated from their neighbours by a depth-wise
    convolution, then by a 1x1 convolution inside q, k or v of each head. All scales are heads of
    their own of ReLU linear attention, and one projection brings them back. Padded tokens are 0
    for the convolutions. The depth-wise convolution of the paper's feed-forward layer is the
    host's: :class:`mmlinattn.models.layers.MixFFN`, :class:`mmlinattn.models.layers.ConvFFN`.

    Args:
        embed_dims, num_heads: channels and heads.
        scales: odd kernel sizes of the aggregations beside the tokens themselves; may be empty.
        eps: added to the normaliser. The release has 1e-15 here; sums are in float32, so that it
            can be given.
        qkv_bias, proj_bias, proj_drop, backend, init_cfg: see :class:`BaseAttention`.

    Raises:
        ValueError: a scale that is not an odd positive integer, or those of
            :class:`BaseAttention`.

    Example:
        >>> import torch
        >>> attn = EnhancedLinearAttention(embed_dims=64, num_heads=2)
        >>> attn(torch.randn(2, 12 * 20, 64), hw_shape=(12, 20)).shape
        torch.Size([2, 240, 64])
    """

    card = AttentionCard(
        formula='ReLU linear attention over heads of q, k, v and of their 5x5 aggregations',
        time='O(N d^2)',
        memory='O(N d)',
        source='Cai et al., ICCV 2023',
        use='dense prediction where neighbours matter; convolutions before the attention',
        map=True,
    )
    takes_extra_tokens = False
    refused_options = ('rotary', 'lepe', 'gate')

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        scales: Sequence[int] = (5,),
        eps: float = 1e-6,
        **kwargs,
    ) -> None:
        super().__init__(embed_dims, num_heads, **kwargs)
        for scale in scales:
            if type(scale) is not int or scale < 1 or scale % 2 == 0:
                raise ValueError(f'scales must be odd kernel sizes, got {tuple(scales)}')
        self.eps = eps
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

    def project(
        self, x: Tensor, query_pos: Optional[Tensor], tokens: TokenMap
    ) -> Tuple[Tensor, Tensor, Tensor, Optional[Tensor]]:
        own = torch.cat(super().project(x, query_pos, tokens)[:3], -1)
        if tokens.key_padding_mask is not None:
            own = own.masked_fill(tokens.key_padding_mask[..., None], 0)
        maps = tokens_to_map(own, tokens.hw_shape)
        scales = [own, *(map_to_tokens(aggregate(maps)) for aggregate in self.aggregations)]
        q, k, v = (torch.cat(part, -1) for part in zip(*(scale.chunk(3, -1) for scale in scales)))
        return q, k, v, None

    def split_heads(self, x: Tensor) -> Tensor:
        """(B, N, C (1 + scales)) to (B, heads (1 + scales), N, d)."""
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, tokens: TokenMap) -> Tensor:
        return linear_attention(
            q, k, v, key_padding_mask=tokens.key_padding_mask, eps=self.eps, feature_map='relu',
            backend=self.backend,
        )  # fmt: skip
