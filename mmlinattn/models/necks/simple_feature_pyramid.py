"""Simple feature pyramid of ViTDet, for detectors and segmentors with a ViT backbone."""

from typing import List, Optional, Sequence, Tuple, Union

import torch.nn.functional as F
from mmengine.model import BaseModule, ModuleList
from mmengine.registry import MODELS
from torch import Tensor, nn

from ..layers import map_to_tokens, tokens_to_map


@MODELS.register_module('LN2d')
class LayerNorm2d(nn.LayerNorm):
    """LayerNorm over the channels of a map (B, C, H, W).

    As ``norm_cfg=dict(type='LN2d')`` the heads of ViTDet have it between their convolutions.
    """

    def forward(self, x: Tensor) -> Tensor:
        return tokens_to_map(super().forward(map_to_tokens(x)), x.shape[-2:])


@MODELS.register_module()
class SimpleFeaturePyramid(BaseModule):
    """Simple feature pyramid of ViTDet, "Exploring Plain Vision Transformer Backbones for Object
    Detection" (Li et al., ECCV 2022).

    The last map is rescaled by 4, 2, 1 and 1/2. Each scale then has a 1x1 and a 3x3 convolution
    with a norm over the channels.

    Args:
        in_channels: channels of the map.
        out_channels: channels of the outputs.
        num_outs: number of outputs, at least 4; each further map subsamples the previous one by 2.
        init_cfg: MMEngine initialisation.

    Inputs:
        tuple of maps, of which the last, (B, in_channels, H, W), is used.

    Returns:
        tuple of ``num_outs`` maps with ``out_channels`` channels.

    Raises:
        ValueError: ``num_outs`` is below 4, or ``in_channels`` is not a multiple of 4.

    Example:
        >>> import torch
        >>> neck = SimpleFeaturePyramid(in_channels=64, out_channels=32, num_outs=5)
        >>> [tuple(out.shape[-2:]) for out in neck((torch.randn(1, 64, 6, 8),))]
        [(24, 32), (12, 16), (6, 8), (3, 4), (2, 2)]
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int = 256,
        num_outs: int = 4,
        init_cfg: Optional[Union[dict, List[dict]]] = None,
    ) -> None:
        super().__init__(init_cfg)
        if num_outs < 4:
            raise ValueError(f'num_outs must be at least 4, got {num_outs}')
        if in_channels % 4:
            raise ValueError(f'in_channels must be a multiple of 4, got {in_channels}')
        self.num_outs = num_outs
        half, quarter = in_channels // 2, in_channels // 4
        self.scales = ModuleList(
            [
                nn.Sequential(
                    nn.ConvTranspose2d(in_channels, half, 2, stride=2),
                    LayerNorm2d(half, eps=1e-6),
                    nn.GELU(),
                    nn.ConvTranspose2d(half, quarter, 2, stride=2),
                ),
                nn.ConvTranspose2d(in_channels, half, 2, stride=2),
                nn.Identity(),
                nn.MaxPool2d(2, stride=2, ceil_mode=True),
            ]
        )
        self.outs = ModuleList(
            nn.Sequential(
                nn.Conv2d(channels, out_channels, 1, bias=False),
                LayerNorm2d(out_channels, eps=1e-6),
                nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False),
                LayerNorm2d(out_channels, eps=1e-6),
            )
            for channels in (quarter, half, in_channels, in_channels)
        )

    def forward(self, x: Sequence[Tensor]) -> Tuple[Tensor, ...]:
        outs = [out(scale(x[-1])) for scale, out in zip(self.scales, self.outs)]
        while len(outs) < self.num_outs:
            outs.append(F.max_pool2d(outs[-1], 1, stride=2))
        return tuple(out.contiguous() for out in outs)
