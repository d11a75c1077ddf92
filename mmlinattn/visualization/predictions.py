"""Pictures of predictions, drawn by the visualizers of the frameworks."""

from functools import cache
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np
from matplotlib import rc_context
from matplotlib.font_manager import FontProperties, findfont, fontManager, get_font
from mmengine.structures import BaseDataElement

from ..engine.model import quiet
from ..utils.messages import log_warning


def draw_prediction(
    image: np.ndarray,
    sample: BaseDataElement,
    classes: Sequence[str],
    palette: Sequence,
    min_score: float = 0.3,
) -> np.ndarray:
    """Draw a prediction of a framework, on the CPU, over an image (H, W, 3) uint8 RGB.

    ``palette`` has an RGB triple in 0..255 for each class. Objects below ``min_score`` are left
    out.
    """
    visualizer: Any
    options: Dict[str, Any]
    if 'pred_instances' in sample:
        from mmdet.visualization import DetLocalVisualizer

        options = dict(pred_score_thr=min_score - 1e-6)  # scores must be larger
        found = sample.pred_instances
        found = found[found.scores > options['pred_score_thr']]
        if 'masks' in found and not found.masks.any():  # its code fails
            found.pop('masks')
        sample, visualizer = sample.new(), DetLocalVisualizer()
        sample.pred_instances = found
    elif 'pred_sem_seg' in sample:
        from mmengine.structures import PixelData
        from mmseg.structures import SegDataSample
        from mmseg.visualization import SegLocalVisualizer

        # Its code takes a torch.bool of one pixel for an index.
        labels = PixelData(data=sample.pred_sem_seg.data.numpy())
        sample = SegDataSample(pred_sem_seg=labels)
        visualizer, options = SegLocalVisualizer(alpha=0.5), dict(with_labels=False)
    else:
        from mmpretrain.structures import DataSample
        from mmpretrain.visualization import UniversalVisualizer

        best = sample.pred_score.topk(min(3, len(classes))).indices
        shown = DataSample().set_pred_score(sample.pred_score).set_pred_label(best)
        with rc_context({'font.sans-serif': font_families(tuple(classes))}):
            return UniversalVisualizer().visualize_cls(image, shown, classes, draw_gt=False)
    visualizer.dataset_meta = dict(classes=classes, palette=[*map(tuple, palette)])
    # They warn of boxes that touch the border.
    with rc_context({'font.sans-serif': font_families(tuple(classes))}), quiet():
        visualizer.add_datasample('', image, sample, draw_gt=False, **options)
    return visualizer.get_image()


@cache
def font_families(names: Tuple[str, ...]) -> List[str]:
    """Return the family of an installed font that has all characters of some names.

    It is matplotlib's default where that has them, or, with a warning, where no font has.
    """
    wanted = {ord(character) for name in names for character in name}
    default = findfont(FontProperties())
    for path in (default, *sorted(font.fname for font in fontManager.ttflist)):
        font = get_font(path)
        if wanted <= font.get_charmap().keys() and 'LastResort' not in font.postscript_name:
            return [font.family_name]
    log_warning(
        f'no installed font has all characters of the class names {", ".join(names)}: pictures '
        'have boxes in their place. Install one, such as Noto Sans CJK'
    )
    return [get_font(default).family_name]
