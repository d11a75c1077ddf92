"""Polarity-aware linear attention (PolaFormer) as a layer."""

from typing import Optional, Sequence, Union

import torch
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor, nn

from ...utils import check_number
from .feature_maps import FeatureMap
from .linear import LinearAttention


class PolarFeatures(FeatureMap):
    """Powers of the positive and of the negative part, "PolaFormer: Polarity-aware Linear Attention
    for Vision Transformers" (Meng et al., ICLR 2025): 2 d features::

        phi(x) = [ReLU(y)^p, ReLU(-y)^p],    y = x / softplus(scale),  p = 1 + alpha sigmoid(power)

    Each channel of a head learns its scale and power; p starts at 1 + alpha / 2.
    """

    exceeds_float16 = True  # the cube of 41 does

    def __init__(self, head_dim: int, num_heads: int, alpha: float = 4) -> None:
        super().__init__(head_dim, num_heads)
        self.alpha = check_number('alpha', alpha, above=True)
        self.scale = nn.Parameter(torch.zeros(num_heads, 1, head_dim))
        self.power = nn.Parameter(torch.zeros(num_heads, 1, head_dim))

    def features(self, x: Tensor) -> Tensor:
        x = x / F.softplus(self.scale.to(x.dtype))
        power = 1 + self.alpha * self.power.to(x.dtype).sigmoid()
        powers = x.abs() ** power
        return torch.cat([powers.where(x > 0, 0), powers.where(x < 0, 0)], -1)


class SharedDepthwiseConv(nn.Conv2d):
    """Depth-wise convolution whose weights are shared by the heads."""

    def __init__(self, head_dim: int, num_heads: int, kernel_size: int) -> None:
        super().__init__(head_dim, head_dim, kernel_size, padding=kernel_size // 2, groups=head_dim)
        self.num_heads = num_heads

    def forward(self, x: Tensor) -> Tensor:
        """Convolve maps (B, heads * head_dim, H, W)."""
        weight = self.weight.repeat(self.num_heads, 1, 1, 1)
        bias = None if self.bias is None else self.bias.repeat(self.num_heads)
        return F.conv2d(x, weight, bias, padding=self.padding, groups=x.shape[1])


@MODELS.register_module()
class PolaFormerAttention(LinearAttention):
    """Polarity-aware linear attention, "PolaFormer" (Meng et al., ICLR 2025), linear in the number
    of tokens.

    Channels where query and key have the same sign weigh the first half of a head's values.
    Channels of opposite sign weigh the second half. With the features of :class:`PolarFeatures`::

        same_ij     = q+_i . k+_j + q-_i . k-_j
        opposite_ij = q-_i . k+_j + q+_i . k-_j

    Each is normalised by its sum. A depth-wise convolution of the values, with weights that the
    heads share, is added; a gate multiplies the sum of both, as in the released code. (The paper
    has separate coefficients of same and opposite signs.)

    Args:
        embed_dims, num_heads: channels and heads; the channels per head must be even.
        alpha: bound of the powers, see :class:`PolarFeatures`.
        map_size: None, or side, or (H, W), of the map of learnt positions that the release adds to
            the keys, see :class:`mmlinattn.models.layers.positions.LearnedKeyPosition`.
        eps: added to the normaliser, a mean over the keys.
        lepe, gate, kwargs: options of :class:`BaseAttention`. The Triton kernels do not support
            features that are wider than the values.

    Raises:
        ValueError: the channels per head are odd, ``alpha`` is not positive, or ``map_size`` is not
            one or two positive integers.

    Example:
        >>> attn = PolaFormerAttention(embed_dims=64, num_heads=2)
        >>> attn(torch.randn(2, 12 * 20, 64), hw_shape=(12, 20)).shape
        torch.Size([2, 240, 64])
    """

    needs_map = True

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        alpha: float = 4,
        map_size: Union[int, Sequence[int], None] = None,
        lepe: int = 5,
        gate: Optional[str] = 'proj',
        eps: float = 1e-6,
        **kwargs,
    ) -> None:
        position = None
        if map_size is not None:
            position = dict(type='LearnedKeyPosition', map_size=map_size)
        super().__init__(
            embed_dims, num_heads, dict(type=PolarFeatures, alpha=alpha), eps, position,
            mean_normaliser=True, lepe=lepe, gate=gate, **kwargs,
        )  # fmt: skip
        if self.head_dim % 2:
            raise ValueError(
                'embed_dims / num_heads must be even, as the values of a head are halved, got '
                f'{embed_dims} / {num_heads} = {self.head_dim}'
            )
        if lepe:
            self.lepe = SharedDepthwiseConv(self.head_dim, num_heads, lepe)

    def weigh(self, q: Tensor, k: Tensor, v: Tensor, **options) -> Tensor:
        positive, negative = q.chunk(2, -1)
        same, opposite = v.chunk(2, -1)
        same = super().weigh(q, k, same, **options)
        opposite = super().weigh(torch.cat([negative, positive], -1), k, opposite, **options)
        return torch.cat([same, opposite], -1)
