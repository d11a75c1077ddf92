"""Exported forms of MMDetection detectors, with static output shapes."""

from typing import Any, Optional, Sequence, Tuple, Type

import torch
from mmdet.models.dense_heads import AnchorHead, RPNHead
from mmdet.models.detectors import DETR, SingleStageDetector, TwoStageDetector
from mmdet.models.roi_heads import BBoxHead, CascadeRoIHead, FCNMaskHead, StandardRoIHead
from mmdet.models.roi_heads.roi_extractors import SingleRoIExtractor
from mmdet.models.task_modules.coders import BaseBBoxCoder
from mmdet.structures import DetDataSample
from mmdet.structures.bbox import bbox_cxcywh_to_xyxy
from mmengine.model import BaseModel, BaseModule
from torch import Tensor, nn
from torchvision.ops import roi_align

from ..models.detectors import SMCA
from ..utils import type_name
from .deployable import Deployable, NotDeployable, check_prediction
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

    def predict(self, x: Tensor, size: Optional[Tensor] = None) -> Outputs:
        size = torch.tensor([x.shape[-2:]] * len(x)) if size is None else size
        return self.detect(x, corners(size))

    def detect(self, x: Tensor, limit: Tensor) -> Outputs:
        """Compute the detections; ``limit``: :func:`corners` of the images before padding."""
        raise NotImplementedError

    def framework_prediction(self, image: Tensor, size: Tensor) -> Outputs:
        """Compute the outputs but masks of one padded image with MMDetection."""
        shape = tuple(size[0].tolist())
        about = dict(img_shape=shape, ori_shape=shape, scale_factor=(1.0, 1.0))
        sample = DetDataSample(metainfo=dict(about, batch_input_shape=tuple(image.shape[-2:])))
        (sample,) = self.model.predict(self.normalised(image), [sample], rescale=False)
        found = sample.pred_instances
        # With an entry of padding, as there may be no detection.
        parts = [
            torch.cat([x, x.new_zeros(1, *x.shape[1:])])[None]
            for x in (found.bboxes, found.scores, found.labels)
        ]
        return self.outputs(Candidates(*parts))

    def outputs(self, found: Candidates, **more: Tensor) -> Outputs:
        found = fixed(found)
        return dict(found._asdict(), count=(found.scores > 0).sum(1), **more)


class DeployableDense(DeployableDetector):
    """Single-stage detector with anchors, such as RetinaNet."""

    def check(self) -> None:
        check_prediction(self.model, SingleStageDetector)
        check_anchors(self.model.bbox_head, 'bbox_head')
        check_nms(self.model.test_cfg, 'test_cfg')

    def detect(self, x: Tensor, limit: Tensor) -> Outputs:
        outs, cfg = self.model.bbox_head(self.model.extract_feat(x)), self.model.test_cfg
        found, _ = dense_candidates(self.model.bbox_head, outs, cfg, limit)
        return self.outputs(survivors(found, found.labels, cfg, limit))


class DeployableTwoStage(DeployableDetector):
    """Faster, Mask and Cascade R-CNN."""

    def check(self) -> None:
        check_prediction(self.model, TwoStageDetector)
        check_prediction(self.model.roi_head, StandardRoIHead, CascadeRoIHead)
        check_anchors(getattr(self.model, 'rpn_head', None), 'rpn_head')
        check_nms(self.model.test_cfg['rpn'], 'test_cfg.rpn')
        check_nms(self.model.test_cfg['rcnn'], 'test_cfg.rcnn')
        if self.model.roi_head.with_shared_head:
            raise NotDeployable('roi_head.shared_head has no exported form')
        for head in self.stages():
            check_prediction(head, BBoxHead)
            if not (head.with_cls and head.with_reg):
                raise NotDeployable(
                    'bbox_head with with_cls or with_reg=False has no exported form'
                )
            check_coder(head.bbox_coder)
            if head.custom_activation:
                raise NotDeployable(f'{type(head.loss_cls).__name__} has no exported form')
        masks = ['mask_roi_extractor'] if self.model.roi_head.with_mask else []
        for head in self.stages('mask_head') if masks else []:
            check_prediction(head, FCNMaskHead)
        for part in ('bbox_roi_extractor', *masks):
            for extractor in self.stages(part):
                if not isinstance(extractor, SingleRoIExtractor):
                    raise NotDeployable(f'{type(extractor).__name__} has no exported form')

    def stages(self, part: str = 'bbox_head') -> Sequence[BaseModule]:
        """Return the heads, or extractors, of all stages."""
        found = getattr(self.model.roi_head, part)
        return list(found) if isinstance(found, nn.ModuleList) else [found]

    def detect(self, x: Tensor, limit: Tensor) -> Outputs:
        feats, head, cfg = self.model.extract_feat(x), self.model.rpn_head, self.model.test_cfg
        found, levels = dense_candidates(head, head(feats), cfg['rpn'], limit)
        proposals = fixed(survivors(found, levels, cfg['rpn'], limit))
        found = self.classify(feats, proposals, limit)
        if not self.model.roi_head.with_mask:
            return self.outputs(found)
        return self.outputs(found, masks=self.masks(feats, found))

    def classify(self, feats: Sequence[Tensor], proposals: Candidates, limit: Tensor) -> Candidates:
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
                rois = with_image(within(refined.unflatten(0, (batch, -1)), limit))
        boxes = head.bbox_coder.decode(rois[:, 1:], deltas).unflatten(1, (-1, 4))
        scores = (total / len(heads)).softmax(-1)[:, :-1]
        # Padded proposals must not yield detections.
        scores = scores * (proposals.scores.flatten() > 0).unsqueeze(1)
        cfg, classes = self.model.test_cfg['rcnn'], scores.shape[1]
        scores = torch.where(scores > cfg['score_thr'], scores, 0.0)
        pairs = Candidates(
            within(boxes.expand(-1, classes, -1).reshape(batch, -1, 4), limit),
            scores.reshape(batch, -1),
            torch.arange(classes).repeat(proposals.boxes.shape[1]).expand(batch, -1),
        )
        found, _ = best(pairs, min(MAX_CANDIDATES, proposals.boxes.shape[1] * classes))
        return survivors(found, found.labels, cfg, limit)

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
    """SMCA. Its backbone sees padding, which the checkpoint cuts off."""

    def detect(self, x: Tensor, limit: Tensor) -> Outputs:
        logits, boxes = self.queries(x, limit)
        if self.model.bbox_head.loss_cls.use_sigmoid:
            scores, classes = logits.sigmoid().flatten(1), logits.shape[-1]
            pairs = torch.arange(scores.shape[1]).expand(boxes.shape[0], -1)
            labels, queries = pairs % classes, pairs // classes
        else:
            scores, labels = logits.softmax(-1)[..., :-1].max(-1)
            queries = torch.arange(boxes.shape[1]).expand(boxes.shape[0], -1)
        number = min(self.model.test_cfg.get('max_per_img', boxes.shape[1]), scores.shape[1])
        scores, places = scores.topk(number)
        boxes = pick(boxes, queries.gather(1, places))
        boxes = within(bbox_cxcywh_to_xyxy(boxes) * limit, limit)
        return self.outputs(Candidates(boxes, scores, labels.gather(1, places)))

    def queries(self, x: Tensor, limit: Tensor) -> Tuple[Tensor, Tensor]:
        """Return logits (B, Q, classes), and boxes (B, Q, 4) as centre and size in 0..1."""
        model, feat = self.model, self.model.extract_feat(x)[-1]
        hw_shape = feat.shape[-2:]
        rows, columns = (model.decoder.stride * torch.arange(side) for side in hw_shape)
        # [B, H, W], True for cells of padding
        mask = (rows[:, None] >= limit[..., 1:2]) | (columns >= limit[..., :1])
        pos = model.positional_encoding(mask)
        tokens, pos = (y.flatten(2).transpose(1, 2) for y in (feat, pos))
        mask = mask.flatten(1)
        memory = model.encoder(tokens, hw_shape, pos, mask)
        query_pos = model.query_embedding.weight.expand(x.shape[0], -1, -1)
        states = model.forward_decoder(
            torch.zeros_like(query_pos), query_pos, memory, mask, pos, hw_shape, limit[:, 0, :2]
        )
        logits, boxes = model.bbox_head(states['hidden_states'][-1:], states['references'])
        return logits[0], boxes[0]


def check_anchors(head: BaseModule, name: str) -> None:
    """Raise NotDeployable unless a head predicts only scores and box deltas of anchors."""
    if not isinstance(head, AnchorHead):
        raise NotDeployable(
            f'{name} is {type(head).__name__}, which has no exported form: heads with anchors have'
        )
    check_prediction(head, AnchorHead, RPNHead)
    check_coder(head.bbox_coder)
    if not hasattr(head, 'loss_cls'):
        raise NotDeployable(
            f'{type(head).__name__} has no exported form: its last map of a small image is empty'
        )
    if getattr(head.loss_cls, 'custom_cls_channels', False):
        raise NotDeployable(f'{type(head.loss_cls).__name__} has no exported form')


def check_coder(coder: BaseBBoxCoder) -> None:
    """Raise NotDeployable if boxes are not clipped to the image."""
    if not getattr(coder, 'clip_border', True):
        raise NotDeployable('bbox_coder.clip_border=False has no exported form, True has')


# Options of mmcv's NMS that are not exported, with the values that turn them off.
NMS_OFF = dict(class_agnostic=False, offset=0, score_threshold=0, max_num=-1)


def check_nms(cfg: dict, name: str) -> None:
    """Raise NotDeployable unless the config has plain NMS with fixed numbers of boxes."""
    nms = cfg.get('nms', {})
    others = any(nms.get(option, off) != off for option, off in NMS_OFF.items())
    if type_name(nms, 'nms') != 'nms' or others or 'iou_threshold' not in nms:
        raise NotDeployable(f'{name}.nms={dict(nms)} has no exported form, dict(type="nms") has')
    for key in ('nms_pre', 'max_per_img'):
        if key in cfg and not 0 < cfg[key] < 3840:
            raise NotDeployable(f'{name}.{key} must be 1 to 3839 in an exported model: {cfg[key]}')
        if key not in cfg and not (key == 'nms_pre' and 'rcnn' in name):
            raise NotDeployable(f'{name}.{key} must be given for an exported model')
