"""Linear attention as a layer."""

from typing import Union

from mmengine.registry import MODELS
from torch import Tensor

from ...ops import linear_attention
from ...utils import check_number
from .base import BaseAttention, TokenLayout
from .feature_maps import FixedFeatures, build_feature_map
from .positions import build_position


@MODELS.register_module()
class LinearAttention(BaseAttention):
    """Linear attention with a choice of feature maps and positions.

    The default feature map gives the DeiT-LA and SMCA-LA baselines of the Ripple paper.

    Args:
        feature_map: ``'elu+1'``, ``'relu'``, ``'softmax'``, or name or config of a registered
            :class:`FeatureMap`: ``'AdaptiveFeatures'`` (of the Ripple paper),
            ``'EfficientFeatures'``, ``'T2RFeatures'``, ``'DPFPFeatures'``, ``'RFAFeatures'``,
            ``'PerformerFeatures'``, ``'FocusedFeatures'``, or your own.
        eps: added to the normaliser.
        mean_normaliser: add eps to a mean over the keys instead of a sum, so that its effect does
            not depend on the size of the map.
        position: None, or name or config of a position without an N x N matrix:
            ``'RotaryPosition'`` (after the feature map), ``'LearnedKeyPosition'``, ``'SineSPE'``,
            ``'ConvSPE'``, ``'PermutationPosition'``; see :mod:`mmlinattn.models.layers.positions`.
        embed_dims, num_heads, kwargs: options of :class:`BaseAttention`. ``rotary`` rotates queries
            and keys before the feature map, which keeps the features positive.

    Raises:
        ValueError: the feature map or position is unknown, ``position`` is combined with
            ``rotary``, or the position does not support extra tokens.

    Example:
        >>> import torch
        >>> attn = LinearAttention(embed_dims=64, num_heads=2, feature_map='elu+1')
        >>> attn(torch.randn(2, 12 * 20, 64), hw_shape=(12, 20)).shape
        torch.Size([2, 240, 64])
    """

    cross_values = 'keys'

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        feature_map: Union[str, dict] = 'AdaptiveFeatures',
        eps: float = 1e-6,
        position: Union[str, dict, None] = None,
        mean_normaliser: bool = False,
        **kwargs,
    ) -> None:
        super().__init__(embed_dims, num_heads, **kwargs)
        if self.rotary and position is not None:
            raise ValueError(
                f'rotary=True cannot be combined with {position=}: set one of them only'
            )
        self.position = build_position(position, self.head_dim, num_heads)
        width = self.head_dim if self.position is None else self.position.out_dims
        self.feature_map = build_feature_map(feature_map, width, num_heads)
        self.eps = check_number('eps', eps)
        self.mean_normaliser = mean_normaliser

    def check_extra_tokens(self, num_extra_tokens: int) -> None:
        super().check_extra_tokens(num_extra_tokens)
        if num_extra_tokens and self.position and not self.position.supports_extra_tokens:
            raise ValueError(
                f'position {type(self.position).__name__} does not support extra tokens, such as a '
                f'class token, which have no position on the map; got {num_extra_tokens=}'
            )

    def attends_packed(self) -> bool:
        return self.position is None and self.feature_map.is_per_token

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout) -> Tensor:
        hw_shape, mask, position = layout.hw_shape, layout.key_padding_mask, self.position
        name, values, rotary = 'identity', v, None
        if position is not None:
            position.check_export(hw_shape)
            q, k = position.before_feature_map(q, k, hw_shape)
        if position is None and isinstance(self.feature_map, FixedFeatures):
            name = self.feature_map.name  # the operator computes features without storing them
        else:
            q, k = self.feature_map(q, k, mask)
            values = v.to(q.dtype)
        if position is not None:
            q, k = position.after_feature_map(q, k, hw_shape)
            rotary = position.rotary(hw_shape, q.shape[-1], layout.num_extra_tokens)
        out = self.weigh(
            q, k, values, key_padding_mask=mask, eps=self.eps, feature_map=name, rotary=rotary,
            mean_normaliser=self.mean_normaliser, cross=layout.cross, packed=layout.packed,
            backend=self.backend,
        )  # fmt: skip
        return out.to(v.dtype)

    def weigh(self, q: Tensor, k: Tensor, v: Tensor, **options) -> Tensor:
        """Compute the attention of v (B, heads, N, d_v) from the features q, k (B, heads, N, m).

        Options are those of :func:`mmlinattn.ops.linear_attention`.
        """
        return linear_attention(q, k, v, **options)
