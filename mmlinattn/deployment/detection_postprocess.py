"""Post-processing of detectors with static output shapes.

The functions are equivalent to MMDetection's ``predict_by_feat`` and ``batched_nms``, but batched:
entries that those remove get the score 0. Boxes are x1, y1, x2, y2 in pixels of the input, in
float32.
"""

from typing import NamedTuple, Sequence, Tuple

import torch
import torch.nn.functional as F
from mmengine.model import BaseModule
from torch import Tensor

from .nms import suppress

# TensorRT's TopK accepts fewer than 3840.
MAX_CANDIDATES = 3000


class Candidates(NamedTuple):
    """Boxes (B, N, 4), scores (B, N), 0 for removed entries, and labels (B, N) int64."""

    boxes: Tensor
    scores: Tensor
    labels: Tensor


def best(candidates: Candidates, number: int) -> Tuple[Candidates, Tensor]:
    """Return the ``number`` best candidates per image, padded with score 0, and their indices."""
    boxes, scores, labels = candidates
    # Padded, so that the number is constant for any image size.
    scores, places = F.pad(scores, (0, number)).topk(number)
    places = places.clamp(max=labels.shape[1] - 1)
    chosen = Candidates(pick(boxes, places), scores, labels.gather(1, places))
    return chosen, places


def pick(x: Tensor, places: Tensor) -> Tensor:
    """Return the rows (B, K, d) of x (B, N, d) at indices (B, K)."""
    return x.gather(1, places.unsqueeze(-1).expand(-1, -1, x.shape[-1]))


def corners(size: Tensor) -> Tensor:
    """Return (B, 1, 4) float32, width, height, width, height, of sizes (B, 2): height, width."""
    return torch.cat([size[:, 1:], size[:, :1]] * 2, 1).unsqueeze(1).float()


def within(boxes: Tensor, limit: Tensor) -> Tensor:
    """Return boxes (B, N, 4) clipped to images, given by their :func:`corners`."""
    return boxes.clamp(min=0).minimum(limit)


def dense_candidates(
    head: BaseModule, outs: Sequence[Sequence[Tensor]], cfg: dict, limit: Tensor
) -> Tuple[Candidates, Tensor]:
    """Decode the ``nms_pre`` best pairs of anchor and class of each level.

    Args:
        outs: class logits, box deltas and perhaps logits of a score factor, such as centerness, of
            each level, (B, anchors * d, h, w).
        limit: :func:`corners` of the images before padding.

    Returns:
        candidates of all levels, and the level of each (B, N) int64.
    """
    cls_scores, bbox_preds, *factors = outs
    sizes, device = [level.shape[-2:] for level in cls_scores], cls_scores[0].device
    priors = head.prior_generator.grid_priors(sizes, torch.float32, device)
    parts, levels = [], []
    for i, (logits, deltas, anchors) in enumerate(zip(cls_scores, bbox_preds, priors)):
        logits = _by_anchor(logits, head.cls_out_channels)  # [B, anchors, outputs]
        # The last output of a softmax is the background.
        scores = logits.sigmoid() if head.use_sigmoid_cls else logits.softmax(-1)[..., :-1]
        classes = scores.shape[-1]
        scores = scores.flatten(1)
        scores = torch.where(scores > cfg.get('score_thr', 0), scores, 0.0)
        scores, places = F.pad(scores, (0, cfg['nms_pre'])).topk(cfg['nms_pre'])
        anchor = (places // classes).clamp(max=anchors.shape[0] - 1)
        for factor in factors:
            scores = scores * pick(_by_anchor(factor[i], 1), anchor).squeeze(-1).sigmoid()
        deltas = pick(_by_anchor(deltas, head.bbox_coder.encode_size), anchor)
        boxes = head.bbox_coder.decode(anchors[anchor.flatten()], deltas.flatten(0, 1))
        boxes = within(boxes.unflatten(0, anchor.shape), limit)
        parts.append(Candidates(boxes, scores, places % classes))
        levels.append(torch.full_like(places, i))
    boxes, scores, labels = (torch.cat(part, 1) for part in zip(*parts))
    smallest = cfg.get('min_bbox_size', -1)
    if smallest >= 0:
        sizes = boxes[..., 2:] - boxes[..., :2]
        scores = torch.where(sizes.amin(-1) > smallest, scores, 0.0)
    return Candidates(boxes, scores, labels), torch.cat(levels, 1)


def _by_anchor(level: Tensor, values: int) -> Tensor:
    """Reshape (B, anchors * values, h, w) to (B, h * w * anchors, values) in float32."""
    return level.permute(0, 2, 3, 1).flatten(1).unflatten(1, (-1, values)).float()


def survivors(candidates: Candidates, groups: Tensor, cfg: dict, limit: Tensor) -> Candidates:
    """Apply non-maximum suppression and return the best boxes of each image.

    Boxes of different ``groups`` (B, N) do not suppress each other. ``cfg`` has ``nms`` and
    ``max_per_img``, the number of boxes; missing ones are padded with score 0. ``limit`` are the
    :func:`corners` of the images before padding.
    """
    (boxes, scores, _), number = candidates, cfg['max_per_img']
    # As in mmcv, an offset per group keeps boxes of different groups from overlapping.
    apart = (groups * (limit.max() + 1)).unsqueeze(-1)
    stays = suppress(boxes + apart, scores, float(cfg['nms']['iou_threshold']), number)
    return best(candidates._replace(scores=scores * stays), number)[0]


def fixed(candidates: Candidates) -> Candidates:
    """Set padded entries to a box of zeros and the label -1."""
    boxes, scores, labels = candidates
    found = scores > 0
    return Candidates(boxes * found.unsqueeze(-1), scores, torch.where(found, labels, -1))
