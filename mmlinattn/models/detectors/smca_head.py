"""Detection head of SMCA."""

from typing import Tuple

import torch
from mmdet.models.dense_heads import ConditionalDETRHead
from mmengine.registry import MODELS
from mmengine.structures import InstanceData
from torch import Tensor

from ...ops.common.numerics import accumulation_dtype


@MODELS.register_module()
class SMCAHead(ConditionalDETRHead):
    """Head that predicts classes, and boxes relative to the points of the decoder.

    Options, losses and predictions are those of MMDetection's ``DETRHead``. The points are added
    before the sigmoid; Conditional DETR must invert and clamp the sigmoid of its points. If there
    are fewer pairs of query and class than ``test_cfg.max_per_img``, all pairs are predictions.

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

    test_cfg: dict  # of MMDetection's DETRHead

    def forward(self, hidden_states: Tensor, references: Tensor) -> Tuple[Tensor, Tensor]:
        """Predict from the outputs of the decoder layers.

        Args:
            hidden_states: (layers, B, Q, C).
            references: (B, Q, 2), x and y before the sigmoid.

        Returns:
            class logits (layers, B, Q, classes), and boxes (layers, B, Q, 4) as cx, cy, w, h in
            0..1 of the image without padding. Both are at least float32, since matching and losses
            in pixels exceed the range of half precision.
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
        # DETRHead calls topk with max_per_img, which fails if there are fewer pairs.
        pairs = cls_score.numel() if self.loss_cls.use_sigmoid else len(cls_score)
        test_cfg = self.test_cfg
        max_per_img = test_cfg.get('max_per_img', len(cls_score))
        self.test_cfg = dict(test_cfg, max_per_img=min(max_per_img, pairs))
        try:
            return super()._predict_by_feat_single(cls_score, bbox_pred, img_meta, rescale)
        finally:
            self.test_cfg = test_cfg
