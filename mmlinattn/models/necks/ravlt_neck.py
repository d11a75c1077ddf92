"""Neck between backbone and classifier of the released RAVLT and H-ViT³ models."""

from typing import Optional, Sequence, Tuple, Union

from mmcv.cnn import build_norm_layer
from mmengine.model import BaseModule
from mmengine.registry import MODELS
from torch import Tensor, nn


@MODELS.register_module()
class RAVLTNeck(BaseModule):
    """1x1 convolution, batch norm, SiLU and global average pooling.

    The released code of "Breaking the Low-Rank Dilemma of Linear Attention" (CVPR 2025) has it
    between the last stage and the linear classifier, without another norm.

    Args:
        in_channels: channels of the last map.
        out_channels: channels of the pooled features; 1024 in the released models. None for batch
            norm and pooling alone, as in H-ViT³.
        norm_cfg: norm after the convolution, BN by default.
        init_cfg: MMEngine initialisation.

    Inputs:
        tuple of maps, of which the last, (B, in_channels, H, W), is used; or one map.

    Returns:
        tuple of one (B, out_channels).

    Example:
        >>> import torch
        >>> neck = RAVLTNeck(in_channels=64, out_channels=128)
        >>> neck((torch.randn(2, 64, 7, 7),))[0].shape
        torch.Size([2, 128])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: Optional[int] = 1024,
        norm_cfg: Optional[dict] = None,
        init_cfg: Optional[dict] = None,
    ) -> None:
        super().__init__(init_cfg)
        self.conv: nn.Module = nn.Identity()
        self.act: nn.Module = nn.Identity()
        if out_channels is not None:
            self.conv, self.act = nn.Conv2d(in_channels, out_channels, 1), nn.SiLU()
        self.bn = build_norm_layer(norm_cfg or dict(type='BN'), out_channels or in_channels)[1]

    def forward(self, x: Union[Tensor, Sequence[Tensor]]) -> Tuple[Tensor]:
        if not isinstance(x, Tensor):
            x = x[-1]
        return (self.act(self.bn(self.conv(x))).mean((2, 3)),)
