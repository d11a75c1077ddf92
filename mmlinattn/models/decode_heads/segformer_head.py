"""The decode head of SegFormer, with the fusion before the resizing."""

from typing import List

import torch.nn.functional as F
from mmcv.cnn import ConvModule
from mmseg.models.decode_heads import SegformerHead
from mmseg.models.utils import resize
from torch import Tensor, nn

from ..layers.linear_projection import has_hooks


class LevelwiseSegformerHead(SegformerHead):
    """MMSegmentation's ``SegformerHead`` with fewer products and less memory.

    The original resizes every level to the largest one, concatenates them and applies a 1x1
    convolution. A 1x1 convolution of a concatenation is a sum of 1x1 convolutions, one per level,
    and resizing commutes with each. Here each level is convolved at its own size, then resized and
    added: the result differs by rounding only. With four levels at strides 4 to 32 the fusion needs
    a third of the products, and no map of ``4 * channels`` channels exists.

    Layers, names of weights and options are those of MMSegmentation. Its formula is used if these
    layers have hooks, such as those of counters of products, or were replaced or wrapped.

    Args:
        kwargs: options of MMSegmentation's ``SegformerHead``.

    Inputs:
        list of (B, in_channels[i], H_i, W_i), the largest map first.

    Returns:
        (B, num_classes, H_0, W_0), logits.

    Example:
        >>> import torch
        >>> head = LevelwiseSegformerHead(
        ...     in_channels=[8, 16], in_index=[0, 1], channels=32, num_classes=19,
        ...     norm_cfg=dict(type='BN'),
        ... )
        >>> tuple(head([torch.randn(2, 8, 16, 16), torch.randn(2, 16, 8, 8)]).shape)
        (2, 19, 16, 16)
    """

    def forward(self, inputs: List[Tensor]) -> Tensor:
        """Return the logits (B, num_classes, H_0, W_0)."""
        fusion = self.fusion_conv
        if type(fusion) is not ConvModule or not all(map(_is_plain, self.fused_layers())):
            return super().forward(inputs)
        levels = self._transform_inputs(inputs)
        options = dict(mode=self.interpolate_mode, align_corners=self.align_corners)
        # Slices of a weight become constants of an exported file, a split does not.
        weights = [
            fusion.conv.weight[:, i * self.channels : (i + 1) * self.channels]
            for i in range(len(levels))
        ]
        fused = self.fuse_level(0, levels[0], weights[0])
        for i in range(1, len(levels)):
            # No name for the resized map: it would live on during the normalisation.
            fused += resize(self.fuse_level(i, levels[i], weights[i]), fused.shape[2:], **options)
        if fusion.conv.bias is not None:
            fused = fused + fusion.conv.bias[:, None, None]
        if fusion.with_norm:
            fused = fusion.norm(fused)
        return self.cls_seg(fusion.activate(fused))

    def fused_layers(self) -> List[nn.Module]:
        """Return the layers of which ``forward`` reads weights without calling them."""
        return [self.fusion_conv, self.fusion_conv.conv]

    def fuse_level(self, i: int, level: Tensor, weight: Tensor) -> Tensor:
        """Return the part of level ``i``, (B, C_i, H_i, W_i), in the fusion, with its weight."""
        return F.conv2d(self.convs[i](level), weight)


def _is_plain(layer: nn.Module) -> bool:
    """Return True if nothing but the class of a 1x1 convolution decides what a call computes."""
    if has_hooks(layer):
        return False
    if type(layer) is ConvModule:
        return True
    return (
        type(layer) is nn.Conv2d
        and layer.kernel_size == layer.stride == (1, 1)
        and layer.padding == (0, 0)
        and layer.groups == 1
    )
