"""The all-MLP decode head of the SegFormer release."""

from typing import List, Optional, cast

import torch.nn.functional as F
from mmengine.model import initialize
from torch import Tensor, nn

from ...ops.common.numerics import no_autocast
from .segformer_head import LevelwiseSegformerHead


class AllMLPHead(LevelwiseSegformerHead):
    """All-MLP decode head as released with SegFormer (Xie et al., NeurIPS 2021, section 3.2).

    A linear layer maps each level to ``channels``. The levels are resized to the largest and
    concatenated; a 1x1 convolution with norm and ReLU fuses them, and another one classifies the
    pixels. MMSegmentation's ``SegformerHead`` differs in two points: it has norm and ReLU behind
    the linear layers, and its classifier starts at a standard deviation of 0.01 instead of torch's
    default. It takes the same options.

    The linear layer and the fusion of a level have nothing between them: their weights are
    multiplied first, and one convolution from ``in_channels[i]`` to ``channels`` computes both.
    ``convert(..., source='mit')`` renames the weights of released segmentors.

    Args:
        init_cfg: config of the initial weights; by default they are those of torch's layers, and
            Kaiming's of the fusion.
        kwargs: options of ``SegformerHead`` of MMSegmentation.

    Example:
        >>> import torch
        >>> head = AllMLPHead(
        ...     in_channels=[8, 16], in_index=[0, 1], channels=32, num_classes=19,
        ...     norm_cfg=dict(type='BN'),
        ... )
        >>> tuple(head([torch.randn(2, 8, 16, 16), torch.randn(2, 16, 8, 8)]).shape)
        (2, 19, 16, 16)
    """

    def __init__(self, *, init_cfg: Optional[dict] = None, **kwargs) -> None:
        super().__init__(init_cfg=init_cfg, **kwargs)
        # A convolution of 1x1 has the values and the start of a linear layer, without transposing.
        self.convs = nn.ModuleList(
            nn.Conv2d(channels, self.channels, kernel_size=1) for channels in self.in_channels
        )

    def init_weights(self) -> None:
        """Initialise all layers by ``init_cfg`` if there is one."""
        super().init_weights()
        if self.init_cfg:
            initialize(self.fusion_conv, self.init_cfg)  # which has a start of its own

    def fused_layers(self) -> List[nn.Module]:
        """Return the layers of which ``forward`` reads weights without calling them."""
        return [*super().fused_layers(), *self.convs]

    def fuse_level(self, i: int, level: Tensor, weight: Tensor) -> Tensor:
        """Return the part of level ``i`` in the fusion, (B, channels, H_i, W_i)."""
        conv, matrix = cast(nn.Conv2d, self.convs[i]), weight.flatten(1)
        with no_autocast(weight):  # a product of weights in half precision would round twice
            product = matrix @ conv.weight.flatten(1)
            bias = None if conv.bias is None else matrix @ conv.bias
        return F.conv2d(level, product[..., None, None], bias)
