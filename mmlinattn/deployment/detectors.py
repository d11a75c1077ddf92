"""Exported forms of MMDetection detectors, with static output shapes."""

from typing import Any, Sequence, Tuple, Type

import torch
from mmdet.models.dense_heads import AnchorHead, RPNHead
from mmdet.models.detectors import DETR, SingleStageDetector, TwoStageDetector
from mmdet.models.roi_heads import CascadeRoIHead, StandardRoIHead
from mmdet.models.roi_heads.roi_extractors import SingleRoIExtractor
from mmdet.structures.bbox import bbox_cxcywh_to_xyxy
from mmengine.model import BaseModel, BaseModule
from torch import Tensor, nn
from torchvision.ops import roi_align

from ..models.detectors import SMCA
from .deployable import Deployable, NotDeployable
from .detection_postprocess import (
    MAX_CANDIDATES,
    Candidates,
    best,
    corners,
    dense_candidates,
    fixed,
    pick,
    survivors,
    within,
)
from .exported_file import Outputs


def deployable_detector(model: BaseModel) -> Type['DeployableDetector']:
    """Return the class of this module for a detector; raise NotDeployable if there is none."""
    if isinstance(model, SMCA):
        return DeployableSMCA
    if isinstance(model, TwoStageDetector) and isinstance(
        model.roi_head, (StandardRoIHead, CascadeRoIHead)
    ):
        return DeployableTwoStage
    # DETR and Mask2Former derive from SingleStageDetector, too.
    single = isinstance(model, SingleStageDetector) and hasattr(model, 'bbox_head')
    if single and not isinstance(model, DETR):
        return DeployableDense
    raise NotDeployable(
        f'{type(model).__name__} has no exported form: RetinaNet and other detectors with anchors, '
        'Faster, Mask and Cascade R-CNN and SMCA have'
    )


class DeployableDetector(Deployable):
    """Base class of detectors, with K = ``max_per_img`` detections per image, padded if fewer.

    Outputs:
        boxes: (B, K, 4) x1 y1 x2 y2 in pixels of the input.
        scores: (B, K) in descending order.
        labels: (B, K) int64, -1 for padding.
        count: (B) int64, the number of detections.
        masks: (B, K, 28, 28), probabilities to resize to the box, if the model predicts masks.
    """

    task = 'detection'

    def outputs(self, found: Candidates, **more: Tensor) -> Outputs:
        found = fixed(found)
        return dict(found._asdict(), count=(found.scores > 0).sum(1), **more)


class DeployableDense(DeployableDetector):
    """Single-stage detector with anchors, such as RetinaNet."""

    def check(self) -> None:
        check_anchors(self.model.bbox_head, 'bbox_head')
        check_nms(self.model.test_cfg, 'test_cfg')

    def predict(self, x: Tensor) -> Outputs:
        outs = self.model.bbox_head(self.model.extract_feat(x))
        cfg, hw_shape = self.model.test_cfg, x.shape[-2:]
        found, _ = dense_candidates(self.model.bbox_head, outs, cfg, hw_shape)
        return self.outputs(survivors(found, found.labels, cfg, hw_shape))


class DeployableTwoStage(DeployableDetector):
    """Faster, Mask and Cascade R-CNN."""

    def check(self) -> None:
        check_anchors(self.model.rpn_head, 'rpn_head')
        check_nms(self.model.test_cfg['rpn'], 'test_cfg.rpn')
        check_nms(self.model.test_cfg['rcnn'], 'test_cfg.rcnn')
        if self.model.roi_head.with_shared_head:
            raise NotDeployable('roi_head.shared_head has no exported form')
        for head in self.stages():
            if head.custom_activation:
                raise NotDeployable(f'{type(head.loss_cls).__name__} has no exported form')
        masks = ['mask_roi_extractor'] if self.model.roi_head.with_mask else []
        for part in ('bbox_roi_extractor', *masks):
            for extractor in self.stages(part):
                if not isinstance(extractor, SingleRoIExtractor):
                    raise NotDeployable(f'{type(extractor).__name__} has no exported form')

    def stages(self, part: str = 'bbox_head') -> Sequence[BaseModule]:
        """Return the heads, or extractors, of all stages."""
        found = getattr(self.model.roi_head, part)
        return list(found) if isinstance(found, nn.ModuleList) else [found]

    def predict(self, x: Tensor) -> Outputs:
        feats, hw_shape = self.model.extract_feat(x), x.shape[-2:]
        head, cfg = self.model.rpn_head, self.model.test_cfg['rpn']
        found, levels = dense_candidates(head, head(feats), cfg, hw_shape)
        proposals = fixed(survivors(found, levels, cfg, hw_shape))
        found = self.classify(feats, proposals, hw_shape)
        if not self.model.roi_head.with_mask:
            return self.outputs(found)
        return self.outputs(found, masks=self.masks(feats, found))

    def classify(
        self, feats: Sequence[Tensor], proposals: Candidates, hw_shape: Sequence[int]
    ) -> Candidates:
        """Return the detections of all classes from the proposals, after all stages."""
        rois, batch = with_image(proposals.boxes), proposals.boxes.shape[0]
        total: Any = 0
        heads = self.stages()
        for i, (head, extractor) in enumerate(zip(heads, self.stages('bbox_roi_extractor'))):
            logits, deltas = head(roi_features(extractor, feats, rois))
            total = total + logits
            if i < len(heads) - 1:
                refined = head.regress_by_class(
                    rois[:, 1:], logits[:, :-1].argmax(1), deltas, dict(img_shape=None)
                )
                rois = torch.cat([rois[:, :1], within(refined, hw_shape)], 1)
        boxes = within(head.bbox_coder.decode(rois[:, 1:], deltas).unflatten(1, (-1, 4)), hw_shape)
        scores = (total / len(heads)).softmax(-1)[:, :-1]
        # Padded proposals must not yield detections.
        scores = scores * (proposals.scores.flatten() > 0).unsqueeze(1)
        cfg, classes = self.model.test_cfg['rcnn'], scores.shape[1]
        scores = torch.where(scores > cfg['score_thr'], scores, 0.0)
        pairs = Candidates(
            boxes.expand(-1, classes, -1).reshape(batch, -1, 4),
            scores.reshape(batch, -1),
            torch.arange(classes).repeat(proposals.boxes.shape[1]).expand(batch, -1),
        )
        found, _ = best(pairs, min(MAX_CANDIDATES, proposals.boxes.shape[1] * classes))
        return survivors(found, found.labels, cfg, hw_shape)

    def masks(self, feats: Sequence[Tensor], found: Candidates) -> Tensor:
        """Return the mask probabilities (B, K, h, w) of the boxes, averaged over all stages."""
        rois, labels = with_image(found.boxes), found.labels.clamp(min=0)
        total: Any = 0
        heads = self.stages('mask_head')
        for head, extractor in zip(heads, self.stages('mask_roi_extractor')):
            logits = head(roi_features(extractor, feats, rois))  # [B K, classes, h, w]
            if head.class_agnostic:
                of_class = logits.squeeze(1)
            else:
                index = labels.reshape(-1, 1, 1, 1).expand(-1, 1, *logits.shape[2:])
                of_class = logits.gather(1, index).squeeze(1)
            total = total + of_class.sigmoid()
        return (total / len(heads)).unflatten(0, labels.shape)


def with_image(boxes: Tensor) -> Tensor:
    """Return boxes (B, K, 4) as rois (B K, 5), with the image index first."""
    numbers = torch.arange(boxes.shape[0], dtype=boxes.dtype).view(-1, 1, 1)
    return torch.cat([numbers.expand(-1, boxes.shape[1], 1), boxes], -1).flatten(0, 1)


def roi_features(extractor: SingleRoIExtractor, feats: Sequence[Tensor], rois: Tensor) -> Tensor:
    """Return the RoI features of MMDetection's ``SingleRoIExtractor``.

    Each box is pooled from all levels, then its level is selected: the boxes of a level are not
    known when the graph is captured.
    """
    feats = feats[: extractor.num_inputs]
    levels = extractor.map_roi_levels(rois, len(feats)).view(-1, 1, 1, 1)
    out: Any = 0
    for i, (feat, layer) in enumerate(zip(feats, extractor.roi_layers)):
        found = roi_align(
            feat, rois, layer.output_size, layer.spatial_scale, layer.sampling_ratio, layer.aligned
        )
        out = torch.where(levels == i, found, out)
    return out


class DeployableSMCA(DeployableDetector):
    """SMCA for images without padding."""

    def predict(self, x: Tensor) -> Outputs:
        logits, boxes = self.queries(x)
        head, hw_shape = self.model.bbox_head, x.shape[-2:]
        if head.loss_cls.use_sigmoid:
            scores, classes = logits.sigmoid().flatten(1), logits.shape[-1]
            pairs = torch.arange(scores.shape[1]).expand(boxes.shape[0], -1)
            labels, queries = pairs % classes, pairs // classes
        else:
            scores, labels = logits.softmax(-1)[..., :-1].max(-1)
            queries = torch.arange(boxes.shape[1]).expand(boxes.shape[0], -1)
        number = min(self.model.test_cfg.get('max_per_img', boxes.shape[1]), scores.shape[1])
        scores, places = scores.topk(number)
        boxes = pick(boxes, queries.gather(1, places))
        boxes = within(bbox_cxcywh_to_xyxy(boxes) * corners(hw_shape), hw_shape)
        return self.outputs(Candidates(boxes, scores, labels.gather(1, places)))

    def queries(self, x: Tensor) -> Tuple[Tensor, Tensor]:
        """Return logits (B, Q, classes), and boxes (B, Q, 4) as centre and size in 0..1."""
        model, feat = self.model, self.model.extract_feat(x)[-1]
        hw_shape = feat.shape[-2:]
        pos = model.positional_encoding(None, feat)
        tokens, pos = (y.flatten(2).transpose(1, 2) for y in (feat, pos))
        memory = model.encoder(tokens, hw_shape, pos)
        query_pos = model.query_embedding.weight.expand(x.shape[0], -1, -1)
        sides = [torch.full((x.shape[0],), x.shape[i], dtype=torch.float32) for i in (-1, -2)]
        states = model.forward_decoder(
            torch.zeros_like(query_pos), query_pos, memory, None, pos, hw_shape,
            torch.stack(sides, -1),
        )  # fmt: skip
        logits, boxes = model.bbox_head(states['hidden_states'][-1:], states['references'])
        return logits[0], boxes[0]


def check_anchors(head: BaseModule, name: str) -> None:
    """Raise NotDeployable unless a head predicts only scores and box deltas of anchors."""
    if not isinstance(head, AnchorHead):
        raise NotDeployable(
            f'{name} is {type(head).__name__}, which has no exported form: heads with anchors have'
        )
    if type(head)._predict_by_feat_single not in (
        AnchorHead._predict_by_feat_single,
        RPNHead._predict_by_feat_single,
    ):
        raise NotDeployable(f'{type(head).__name__} predicts in a way that has no exported form')
    if getattr(head.loss_cls, 'custom_cls_channels', False):
        raise NotDeployable(f'{type(head.loss_cls).__name__} has no exported form')


def check_nms(cfg: dict, name: str) -> None:
    """Raise NotDeployable unless the config has plain NMS with fixed numbers of boxes."""
    nms = cfg.get('nms', {})
    if nms.get('type', 'nms') != 'nms' or nms.get('class_agnostic') or 'iou_threshold' not in nms:
        raise NotDeployable(f'{name}.nms={dict(nms)} has no exported form, dict(type="nms") has')
    for key in ('nms_pre', 'max_per_img'):
        if key in cfg and not 0 < cfg[key] < 3840:
            raise NotDeployable(f'{name}.{key} must be 1 to 3839 in an exported model: {cfg[key]}')
    if 'rcnn' not in name and 'nms_pre' not in cfg:
        raise NotDeployable(f'{name}.nms_pre must be given for an exported model')
