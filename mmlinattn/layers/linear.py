"""Linear attention as a layer."""

from typing import Union

from mmengine.registry import MODELS
from torch import Tensor

from ..ops import linear_attention
from .base import BaseAttention, TokenMap
from .feature_maps import FixedFeatures, build_feature_map


@MODELS.register_module()
class LinearAttention(BaseAttention):
    """Linear attention: the DeiT-LA and SMCA-LA baselines of the Ripple paper with
    the default feature map.

    Args:
        embed_dims, num_heads: channels and heads.
        feature_map: ``'elu+1'``, ``'relu'``, ``'softmax'``, or config of a map with parameters:
            ``'AdaptiveFeatures'`` (the paper's), ``'EfficientFeatures'``, ``'T2RFeatures'``,
            ``'DPFPFeatures'``, ``'RFAFeatures'``, ``'PerformerFeatures'``, or your own.
        eps: added to the normaliser.
        others: see :class:`BaseAttention`. Rotary position turns queries and keys before the
            feature map, which keeps the features positive.

    Raises:
        ValueError: an unknown feature map, or those of :class:`BaseAttention`.

    Example:
        >>> import torch
        >>> attn = LinearAttention(embed_dims=64, num_heads=2, feature_map='elu+1')
        >>> attn(torch.randn(2, 12 * 20, 64), hw_shape=(12, 20)).shape
        torch.Size([2, 240, 64])
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        feature_map: Union[str, dict] = 'AdaptiveFeatures',
        eps: float = 1e-6,
        **kwargs,
    ) -> None:
        super().__init__(embed_dims, num_heads, **kwargs)
        self.feature_map = build_feature_map(feature_map, self.head_dim, num_heads)
        self.eps = eps

    def attend(self, q: Tensor, k: Tensor, v: Tensor, tokens: TokenMap) -> Tensor:
        if isinstance(self.feature_map, FixedFeatures):  # inside the operator nothing is written
            name, values = self.feature_map.name, v
        else:
            q, k = self.feature_map(q, k, tokens.key_padding_mask)
            name, values = 'identity', v.to(q.dtype)
        out = linear_attention(
            q, k, values, key_padding_mask=tokens.key_padding_mask, eps=self.eps, feature_map=name,
            backend=self.backend,
        )  # fmt: skip
        return out.to(v.dtype)
