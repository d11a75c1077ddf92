"""Linear attention of MLLA (MILA) as a layer."""

from typing import Optional

from mmengine.registry import MODELS
from torch import Tensor, nn

from ...ops import linear_attention
from ...utils import check_number
from .base import BaseAttention, Projected, TokenLayout
from .rotary import check_rotary_over_heads, rotary_over_heads


@MODELS.register_module()
class MLLAAttention(BaseAttention):
    """Linear attention of MLLA, renamed MILA (Han et al., "Demystify Mamba in Vision: A Linear
    Attention Perspective", NeurIPS 2024): linear in the number of tokens.

    It differs from :class:`LinearAttention` in its projections and its position. One linear layer
    gives queries and keys; the values are x itself, and there is no output projection. The block of
    :class:`mmlinattn.models.backbones.MLLA` projects before and after it; in the block of another
    backbone, only the feed-forward layer mixes the channels of different heads. Rotary position
    runs over all channels before they are split into heads: rows rotate the first half of the
    channels, columns the second half. The features of the normaliser are not rotated.

    Args:
        embed_dims, num_heads: channels and heads; with ``rotary``, ``embed_dims`` is a multiple of
            4 and has an even number per head.
        rotary: 2D rotary position on the features of queries and keys.
        eps: added to the mean of the weights.
        lepe, qkv_bias, kwargs: options of :class:`BaseAttention` but ``gate``, which the block of
            MLLA has, and ``proj_bias``. The Triton kernels serve ``rotary=False`` or one head.

    Raises:
        ValueError: rotary position cannot split the channels.

    Example:
        >>> import torch
        >>> attn = MLLAAttention(embed_dims=64, num_heads=2)
        >>> attn(torch.randn(2, 12 * 20, 64), hw_shape=(12, 20)).shape
        torch.Size([2, 240, 64])
    """

    needs_map = True
    applies_rotary = True  # the operator rotates features, in the numerator only
    projections = ('in_proj', 'lepe')
    unsupported_options = ('gate',)

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        rotary: bool = True,
        lepe: int = 3,
        eps: float = 1e-6,
        qkv_bias: bool = True,
        **kwargs,
    ) -> None:
        super().__init__(embed_dims, num_heads, lepe=lepe, **kwargs)
        self.rotary = check_rotary_over_heads(self, rotary)
        self.eps = check_number('eps', eps)
        self.in_proj = nn.Linear(embed_dims, 2 * embed_dims, bias=qkv_bias)
        self.proj = nn.Identity()  # type: ignore[assignment]  # MLLA has none

    def project(self, x: Tensor, query_pos: Optional[Tensor], layout: TokenLayout) -> Projected:
        with_pos = x if query_pos is None else x + query_pos
        q, k = self.in_proj(with_pos).chunk(2, -1)
        return q, k, x.to(q.dtype), None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout) -> Tensor:
        return linear_attention(
            q, k, v, key_padding_mask=layout.key_padding_mask, eps=self.eps, feature_map='elu+1',
            rotary=rotary_over_heads(self, layout), mean_normaliser=True, backend=self.backend,
        )  # fmt: skip
