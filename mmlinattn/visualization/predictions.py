"""Pictures of predictions, drawn by the visualizers of the frameworks."""

from typing import Any, Dict, Sequence

import numpy as np
from mmengine.structures import BaseDataElement

from ..engine.model import quiet


def draw_prediction(
    image: np.ndarray,
    sample: BaseDataElement,
    classes: Sequence[str],
    palette: Sequence,
    min_score: float = 0.3,
    with_truth: bool = False,
) -> np.ndarray:
    """Draw a prediction over an image.

    Args:
        image: (H, W, 3) uint8 RGB.
        sample: prediction of MMDetection, MMSegmentation or MMPretrain, on the CPU.
        classes, palette: names and RGB triples in 0..255.
        min_score: objects with a lower score are left out.
        with_truth: draw the ground truth of a detector or segmentor on the left of it.

    Returns:
        (H, W, 3) uint8 RGB; with the ground truth (H, 2 * W, 3).
    """
    visualizer: Any
    options: Dict[str, Any]
    if 'pred_instances' in sample:
        from mmdet.visualization import DetLocalVisualizer

        visualizer = DetLocalVisualizer()
        options = dict(pred_score_thr=min_score - 1e-6)  # scores must be larger
    elif 'pred_sem_seg' in sample:
        from mmseg.visualization import SegLocalVisualizer

        visualizer, options = SegLocalVisualizer(alpha=0.5), dict(with_labels=False)
    else:
        from mmpretrain.structures import DataSample
        from mmpretrain.visualization import UniversalVisualizer

        best = sample.pred_score.topk(min(3, len(classes))).indices
        shown = DataSample().set_pred_score(sample.pred_score).set_pred_label(best)
        return UniversalVisualizer().visualize_cls(image, shown, classes, draw_gt=False)
    visualizer.dataset_meta = dict(classes=classes, palette=[*map(tuple, palette)])
    drawn = []
    with quiet():  # they warn of boxes that touch the border
        for truth in (True, False) if with_truth else (False,):
            visualizer.add_datasample(
                '', image, sample, draw_gt=truth, draw_pred=not truth, **options
            )
            drawn.append(visualizer.get_image())
    return np.hstack(drawn)
