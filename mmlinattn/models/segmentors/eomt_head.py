"""Head that predicts masks of queries by dot products with an enlarged map."""

from typing import Any, List, Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from mmcv.cnn import build_norm_layer
from mmdet.registry import TASK_UTILS
from mmengine.model import BaseModule
from mmengine.registry import MODELS
from mmseg.models.decode_heads import Mask2FormerHead
from torch import Tensor, nn

from ..layers.mask_losses import Float32MaskLosses

# Those of Mask2Former.
LOSS_CLS = dict(type='mmdet.CrossEntropyLoss', use_sigmoid=False, loss_weight=2.0, reduction='mean')
LOSS_MASK = dict(type='mmdet.CrossEntropyLoss', use_sigmoid=True, reduction='mean', loss_weight=5.0)
LOSS_DICE = dict(
    type='mmdet.DiceLoss', use_sigmoid=True, activate=True, reduction='mean', naive_dice=True,
    eps=1.0, loss_weight=5.0,
)  # fmt: skip
ASSIGNER = dict(
    type='mmdet.HungarianAssigner',
    match_costs=[
        dict(type='mmdet.ClassificationCost', weight=2.0),
        dict(type='mmdet.CrossEntropyLossCost', weight=5.0, use_sigmoid=True),
        dict(type='mmdet.DiceCost', weight=5.0, pred_act=True, eps=1.0),
    ],
)
SAMPLER = dict(type='mmdet.MaskPseudoSampler')
NO_OBJECT_WEIGHT = 0.1


class EoMTHead(Float32MaskLosses, Mask2FormerHead):
    """Head of :class:`EoMT`, which has queries and a map (Kerssies et al., CVPR 2025)::

        class_q = W q + b
        mask_q(y, x) = mlp(q) . upscaled(y, x)

    The map is enlarged by transposed convolutions. Matching, losses and semantic inference are
    those of Mask2Former in MMSegmentation, its base class.

    Args:
        in_channels: channels C of queries and map.
        num_classes: number of classes K.
        num_queries: number of queries Q.
        num_upscales: number of doublings of the map: 2 for patches of 16 pixels, as in the paper.
        num_points: points of each mask that matching and losses compare.
        align_corners: of the resized logits.
        ignore_index: label of pixels without a class.
        init_cfg: MMEngine initialisation.

    Inputs:
        list of (queries (B, Q, C), map (B, C, H, W)).

    Returns:
        two lists with an entry for each input, in evaluation for the last one: class logits
        (B, Q, K + 1), the last for no object, and mask logits (B, Q, 2^n H, 2^n W).

    Raises:
        ValueError: ``num_upscales`` is negative.

    Example:
        >>> head = EoMTHead(in_channels=32, num_classes=5, num_queries=10, num_upscales=1)
        >>> classes, masks = head([(torch.randn(2, 10, 32), torch.randn(2, 32, 8, 8))])
        >>> tuple(classes[0].shape), tuple(masks[0].shape)
        ((2, 10, 6), (2, 10, 16, 16))
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        num_queries: int = 100,
        num_upscales: int = 2,
        num_points: int = 12544,
        align_corners: bool = False,
        ignore_index: int = 255,
        init_cfg: Optional[dict] = None,
    ) -> None:
        # The base classes would build a pixel decoder and a transformer.
        BaseModule.__init__(self, init_cfg)
        if num_upscales < 0:
            raise ValueError(f'num_upscales must be at least 0, got {num_upscales}')
        self.in_channels, self.num_queries = in_channels, num_queries
        self.num_classes = self.out_channels = num_classes
        self.align_corners, self.ignore_index = align_corners, ignore_index
        self.cls_embed = nn.Linear(in_channels, num_classes + 1)
        self.mask_embed = nn.Sequential(
            nn.Linear(in_channels, in_channels), nn.GELU(),
            nn.Linear(in_channels, in_channels), nn.GELU(),
            nn.Linear(in_channels, in_channels),
        )  # fmt: skip
        self.upscale = nn.Sequential(*(_double(in_channels) for _ in range(num_upscales)))
        # The losses of the base classes read the following.
        self.num_points, self.oversample_ratio, self.importance_sample_ratio = num_points, 3.0, 0.75
        self.assigner = TASK_UTILS.build(ASSIGNER)
        self.sampler = TASK_UTILS.build(SAMPLER, default_args=dict(context=self))
        self.class_weight = [1.0] * self.num_classes + [NO_OBJECT_WEIGHT]
        self.loss_cls = MODELS.build(dict(LOSS_CLS, class_weight=self.class_weight))
        self.loss_mask = MODELS.build(LOSS_MASK)
        self.loss_dice = MODELS.build(LOSS_DICE)

    def init_weights(self) -> None:
        """Apply ``init_cfg``; the layers start as torch's do."""
        BaseModule.init_weights(self)

    def forward(
        self, x: Sequence[Tuple[Tensor, Tensor]], batch_data_samples: Any = None
    ) -> Tuple[List[Tensor], List[Tensor]]:
        levels = x if self.training else x[-1:]
        masks = [
            torch.einsum('bqc,bchw->bqhw', self.mask_embed(queries), self.upscale(found))
            for queries, found in levels
        ]
        return [self.cls_embed(queries) for queries, _ in levels], masks

    def predict(
        self, x: Sequence[Tuple[Tensor, Tensor]], batch_img_metas: List[dict], test_cfg: Any
    ) -> Tensor:
        """Return the logits (B, K, H, W) at the size of the images.

        The base class copies the sizes, which are symbols in an exported graph.
        """
        (*_, classes), (*_, masks) = self(x)
        size = batch_img_metas[0].get('pad_shape', batch_img_metas[0]['img_shape'])[:2]
        masks = F.interpolate(masks, size=size, mode='bilinear', align_corners=False).sigmoid()
        return torch.einsum('bqk,bqhw->bkhw', classes.softmax(-1)[..., :-1], masks)


def _double(channels: int) -> nn.Module:
    """Return layers that double the sides of a map."""
    return nn.Sequential(
        nn.ConvTranspose2d(channels, channels, 2, stride=2),
        nn.GELU(),
        nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False),
        build_norm_layer(dict(type='LN2d', eps=1e-6), channels)[1],
    )
