"""Boundary IoU of segmentations."""

from typing import Any, Dict, List, Optional, Sequence

import cv2
import numpy as np
from mmengine.evaluator import BaseMetric
from mmengine.registry import METRICS


def boundary_of(
    mask: np.ndarray, distance: int, ignored: Optional[np.ndarray] = None
) -> np.ndarray:
    """Return the pixels of a mask that are at most ``distance`` pixels from its outside.

    The image is surrounded by outside: a mask has a boundary along the edge of the image, too.

    Args:
        mask: (H, W) bool.
        distance: in pixels; diagonal neighbours have distance 1.
        ignored: (H, W) bool, pixels that make no boundary of their neighbours.

    Returns:
        (H, W) bool.

    Example:
        >>> int(boundary_of(np.ones((5, 6), dtype=bool), distance=1).sum())
        18
    """
    if 2 * distance >= min(mask.shape):  # no pixel is farther from the edge of the image
        return mask
    filled = mask if ignored is None else mask | ignored
    square = np.ones((2 * distance + 1,) * 2, np.uint8)
    inside = cv2.erode(
        filled.astype(np.uint8), square, borderType=cv2.BORDER_CONSTANT, borderValue=0
    )
    return mask & (inside == 0)


@METRICS.register_module()
class BoundaryIoUMetric(BaseMetric):
    """Boundary IoU of semantic segmentation (definition of Cheng et al., CVPR 2021).

    The IoU of a class is taken between the boundary regions of prediction and annotation: their
    pixels near the outside of the class. It counts errors of outlines, which the plain IoU of large
    regions hides. Objects thinner than twice the distance are boundary as a whole. Pixels are
    summed over all images, as MMSegmentation's IoUMetric does.

    Args:
        dilation_ratio: width of the boundary region over the diagonal of the image, above 0; 0.02
            in the paper. It is rounded to whole pixels, at least one. With 1 the region is all of
            the class, and the result its plain IoU.
        ignore_index: label of pixels that do not count.
        classwise: return the IoU of each class, too.
        collect_device, prefix: see MMEngine's BaseMetric.

    Returns:
        ``boundary/mIoU`` in percent, mean over the classes that occur; with ``classwise`` also
        ``boundary/IoU_CLASS``, NaN for a class that occurs nowhere.

    Raises:
        ValueError: ``dilation_ratio`` is not above 0 and at most 1, or ``ignore_index`` no integer.

    Example:
        >>> val_evaluator = [
        ...     dict(type='IoUMetric', iou_metrics=['mIoU']), dict(type='BoundaryIoUMetric')
        ... ]
    """

    default_prefix = 'boundary'

    def __init__(
        self,
        dilation_ratio: float = 0.02,
        ignore_index: int = 255,
        classwise: bool = False,
        collect_device: str = 'cpu',
        prefix: Optional[str] = None,
    ) -> None:
        super().__init__(collect_device, prefix)
        if not (isinstance(dilation_ratio, (int, float)) and 0 < dilation_ratio <= 1):
            raise ValueError(
                f'dilation_ratio must be above 0 and at most 1, got {dilation_ratio!r}'
            )
        if not isinstance(ignore_index, int):
            raise ValueError(f'ignore_index must be an integer, got {ignore_index!r}')
        self.dilation_ratio = dilation_ratio
        self.ignore_index = ignore_index
        self.classwise = classwise

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        number = len(self.dataset_meta['classes'])
        for sample in data_samples:
            # Predictions of a single sigmoid output are floats.
            pred, true = (
                sample[key]['data'].reshape(sample[key]['data'].shape[-2:]).long().cpu().numpy()
                for key in ('pred_sem_seg', 'gt_sem_seg')
            )
            ignored = true == self.ignore_index
            distance = max(1, round(self.dilation_ratio * float(np.hypot(*true.shape))))
            counts = np.zeros((2, number), dtype=np.int64)  # intersection and union
            for i in np.intersect1d(np.union1d(pred, true), np.arange(number)):
                masks = ((of == i) & ~ignored for of in (pred, true))
                a, b = (boundary_of(mask, distance, ignored) for mask in masks)
                counts[:, i] = (a & b).sum(), (a | b).sum()
            self.results.append(counts)

    def compute_metrics(self, results: List[np.ndarray]) -> Dict[str, float]:
        intersection, union = np.sum(results, 0)
        iou = np.full(len(union), np.nan)
        np.divide(100 * intersection, union, out=iou, where=union > 0)
        found = dict(mIoU=float(np.nanmean(iou)) if (union > 0).any() else float('nan'))
        if self.classwise:
            found |= {f'IoU_{name}': float(x) for name, x in zip(self.dataset_meta['classes'], iou)}
        return found
