"""The head of SMCA."""

from typing import Tuple

import torch
from mmdet.models.dense_heads import ConditionalDETRHead
from mmengine.registry import MODELS
from mmengine.structures import InstanceData
from torch import Tensor

from ...ops.common.numerics import accumulation_dtype


@MODELS.register_module()
class SMCAHead(ConditionalDETRHead):
    """Classes and boxes, boxes around the points that the decoder predicted.

    Options, losses and predictions are those of MMDetection's ``DETRHead``. The points are added
    as they come, before the sigmoid; Conditional DETR, whose points have gone through the sigmoid,
    has to invert and clamp it. Where queries and classes are so few that there are fewer pairs than
    ``test_cfg.max_per_img``, all pairs are predictions.

    Example:
        >>> head = SMCAHead(
        ...     num_classes=3, embed_dims=32, loss_cls=dict(type='mmdet.FocalLoss'),
        ...     loss_bbox=dict(type='mmdet.L1Loss'), loss_iou=dict(type='mmdet.GIoULoss'),
        ...     train_cfg=None,
        ... )
        >>> scores, boxes = head(torch.randn(6, 2, 10, 32), torch.randn(2, 10, 2))
        >>> scores.shape, boxes.shape
        (torch.Size([6, 2, 10, 3]), torch.Size([6, 2, 10, 4]))
    """

    def forward(self, hidden_states: Tensor, references: Tensor) -> Tuple[Tensor, Tensor]:
        """Predicts from the outputs of decoder layers.

        Args:
            hidden_states: (layers, B, Q, C).
            references: (B, Q, 2), x and y before the sigmoid.

        Returns:
            class logits (layers, B, Q, classes), and boxes (layers, B, Q, 4) as cx, cy, w, h in
            0..1 of the image without padding; both float32 at least, for matching and losses in
            pixels outgrow half precision.
        """
        boxes = self.fc_reg(self.activate(self.reg_ffn(hidden_states)))
        scores = self.fc_cls(hidden_states)
        dtype = accumulation_dtype(boxes.dtype)
        boxes, references = boxes.to(dtype), references.to(dtype)
        centers = boxes[..., :2] + references
        return scores.to(dtype), torch.cat([centers, boxes[..., 2:]], -1).sigmoid()

    def _predict_by_feat_single(
        self, cls_score: Tensor, bbox_pred: Tensor, img_meta: dict, rescale: bool = True
    ) -> InstanceData:
        # DETRHead asks topk for max_per_img, however few there are.
        pairs = cls_score.numel() if self.loss_cls.use_sigmoid else len(cls_score)
        test_cfg = self.test_cfg
        wanted = test_cfg.get('max_per_img', len(cls_score))
        self.test_cfg = dict(test_cfg, max_per_img=min(wanted, pairs))
        try:
            return super()._predict_by_feat_single(cls_score, bbox_pred, img_meta, rescale)
        finally:
            self.test_cfg = test_cfg
