"""Trial of a config's metrics on one made-up sample before a run starts.

The frameworks' metrics read many of their options only after the last image.
"""

import copy
import io
from contextlib import redirect_stdout
from typing import Any, Callable, Dict, Optional, Sequence

import torch
from mmengine.evaluator import BaseMetric, Evaluator
from torch import nn

from ..model import number_of_classes, quiet

Sample = Dict[str, Any]


def check_evaluator(evaluator: Evaluator, configs: Any, model: nn.Module, name: str) -> None:
    """Score one made-up sample with copies of the metrics.

    Metrics that are not in :data:`SAMPLES`, and those that only write files, are skipped.

    Args:
        evaluator: built evaluator with the ``dataset_meta`` of its loop.
        configs: config of the evaluator, or a list of metric configs.
        model: model whose predictions will be scored.
        name: key of the evaluator in the config, such as ``'val_evaluator'``.

    Raises:
        ValueError: a metric fails; the message lists its options.
    """
    configs = configs if isinstance(configs, (list, tuple)) else [configs]
    for i, metric in enumerate(evaluator.metrics):
        make = SAMPLES.get(type(metric).__name__)
        if make is None or getattr(metric, 'format_only', False):
            continue
        trial = copy.copy(metric)
        sample = make(trial, model)
        if sample is None:
            continue
        trial.results = []
        try:
            with quiet(), redirect_stdout(io.StringIO()):
                trial.process({}, [sample])
                trial.compute_metrics(trial.results)
        except Exception as error:
            text = error.args[0] if isinstance(error, KeyError) and error.args else error
            config = configs[i] if i < len(configs) and isinstance(configs[i], dict) else {}
            options = ', '.join(f'{key}={value!r}' for key, value in config.items())
            raise ValueError(f'{name} ({options}) cannot score: {text}') from error


def _segmentation(metric: BaseMetric, model: nn.Module) -> Optional[Sample]:
    metric.output_dir = None
    classes = torch.zeros(1, 4, 4, dtype=torch.int64)
    return dict(pred_sem_seg=dict(data=classes), gt_sem_seg=dict(data=classes))


def _classification(metric: BaseMetric, model: nn.Module) -> Optional[Sample]:
    names = (metric.dataset_meta or {}).get('classes') or ()
    number = number_of_classes(model) or len(names)
    if not number:
        return None
    return dict(pred_score=torch.ones(number) / number, gt_label=torch.tensor([0]))


def _detection(metric: BaseMetric, model: nn.Module) -> Optional[Sample]:
    metric.outfile_prefix = None
    image, side = 0, 8
    if metric._coco_api is not None:
        images: Sequence[int] = metric._coco_api.get_img_ids()
        if not images:
            return None
        image = images[0]
        metric.img_ids = [image]
    found: Sample = dict(
        bboxes=torch.tensor([[0.0, 0, side, side]]),
        scores=torch.ones(1),
        labels=torch.zeros(1, dtype=torch.int64),
    )
    roi_head = getattr(model, 'roi_head', None)
    if roi_head is None or roi_head.with_mask:  # other detectors may have masks
        found['masks'] = torch.ones(1, side, side, dtype=torch.bool)
    corners: list = [0, 0, side, 0, side, side]
    instance = dict(bbox=[0, 0, side, side], bbox_label=0, ignore_flag=0, mask=[corners])
    return dict(img_id=image, ori_shape=(side, side), pred_instances=found, instances=[instance])


SAMPLES: Dict[str, Callable[[BaseMetric, nn.Module], Optional[Sample]]] = {
    'IoUMetric': _segmentation,
    'CocoMetric': _detection,
    'Accuracy': _classification,
    'SingleLabelMetric': _classification,
}
