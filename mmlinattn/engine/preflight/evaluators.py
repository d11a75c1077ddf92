"""Trial of a config's metrics on one made-up sample before a run starts.

The frameworks' metrics read many of their options only after the last image.
"""

import copy
import io
import os.path as osp
import re
from contextlib import redirect_stdout
from itertools import pairwise
from typing import AbstractSet, Any, Callable, Dict, Iterator, Optional, Tuple

import torch
from mmengine.config import Config
from mmengine.evaluator import BaseMetric, Evaluator
from mmengine.hooks import CheckpointHook
from torch import nn

from ...datasets.audit.coco import Finding, check_coco
from ...utils.suggest import did_you_mean, shorten
from ..model import number_of_classes, quiet
from .data import annotation_path, dataset_configs

Sample = Dict[str, Any]


def check_evaluator(
    evaluator: Evaluator, configs: Any, model: nn.Module, name: str
) -> AbstractSet[str]:
    """Score a made-up sample with copies of the metrics, and return the names of scores in order.

    Metrics that are not in :data:`SAMPLES`, and those that only write files, are skipped: the names
    then have their prefix alone, such as ``'coco_panoptic/'`` or ``''``. ``configs`` are those of
    the metrics, and ``name`` is the key of the evaluator in the config.
    """
    configs = configs if isinstance(configs, (list, tuple)) else [configs]
    # Other evaluators may rename scores.
    scores: Dict[str, None] = {} if type(evaluator) is Evaluator else {'': None}
    for i, metric in enumerate(evaluator.metrics):
        make = SAMPLES.get(type(metric).__name__)
        prefix = f'{metric.prefix}/' if metric.prefix else ''
        trial = copy.copy(metric)
        only_writes = getattr(metric, 'format_only', False)
        sample = None if make is None or only_writes else make(trial, model)
        if sample is None:
            scores[prefix] = None
            continue
        config = configs[i] if i < len(configs) and isinstance(configs[i], dict) else {}
        trial.results = []
        try:
            with quiet(), redirect_stdout(io.StringIO()):
                trial.process({}, [sample])
                found = trial.compute_metrics(trial.results)
        except Exception as error:
            text = error.args[0] if isinstance(error, KeyError) and error.args else error
            if text == 'segmentation':
                text = "the objects have no mask: for boxes alone take metric='bbox', a detector "
                text += 'without a mask head, and LoadAnnotations without with_mask'
            options = ', '.join(f'{key}={value!r}' for key, value in config.items())
            raise ValueError(f'{name} ({options}) cannot score: {text}') from error
        # MMDetection names the scores in the order of the file, pycocotools sorts them by id.
        ids = trial.cat_ids if getattr(trial, 'classwise', False) else ()
        falls = [pair for pair in pairwise(ids) if pair[0] > pair[1]]
        if falls:
            raise ValueError(
                f'{name}.classwise would print the AP of classes under the names of others: in '
                f'{config.get("ann_file")} the category id {falls[0][1]} follows {falls[0][0]}. '
                'List the categories of all annotation files by ascending id before a training, or '
                'set classwise=False'
            )
        scores.update(dict.fromkeys(f'{prefix}{key}' for key in found))
    return scores.keys()


def check_monitor(option: str, value: Any, scores: AbstractSet[str]) -> None:
    """Raise ValueError if ``scores``, of :func:`check_evaluator`, lack one that an option names."""
    for name in value if isinstance(value, list) else [value]:
        if not isinstance(name, str) or name == 'auto':
            continue
        plain = re.sub('_(ema|best|origin)$', '', name)  # added by hooks that average the weights
        if plain in scores or any(name.startswith(s) for s in scores if s == '' or s[-1] == '/'):
            continue
        there = f'scores {shorten(sorted(scores))}' if scores else 'is not configured'
        hint = did_you_mean(name, scores)
        raise ValueError(f'{option} is {name!r}, but the validation {there}{hint}')


def check_ignored_label(cfg: Config, split: str, model: nn.Module) -> Iterator[Finding]:
    """Compare the ignored label of a segmentor with those of the metrics of a split."""
    heads = getattr(model, 'decode_head', None)
    # The last head of a cascade predicts.
    head = heads[-1] if isinstance(heads, nn.ModuleList) else heads
    ignored = getattr(head, 'ignore_index', None)
    classes = range(getattr(head, 'num_classes', 0))
    for option, metric in _metrics(cfg, split):
        scored = metric.get('ignore_index', 255)
        is_iou = 'IoUMetric' in str(metric.get('type')) and not metric.get('format_only')
        # A negative label is that of no pixel; a metric may leave out a class on purpose.
        differs = type(ignored) is int and ignored >= 0 and scored not in (ignored, *classes)
        if is_iou and differs:
            what = f'is {scored}, but model.decode_head.ignore_index is {ignored}: pixels that are '
            what += f'not trained would count in the scores. Set {option}.ignore_index={ignored}'
            yield Finding('class', f'{option}.ignore_index', what, ignored not in classes)


def check_rule(hook: CheckpointHook, scores: AbstractSet[str]) -> None:
    """Raise ValueError if ``save_best='auto'`` needs a rule for the first score of a validation."""
    first = next(iter(scores), '')
    if 'auto' not in getattr(hook, 'key_indicators', ()) or first == '' or first[-1] == '/':
        return
    try:
        copy.copy(hook)._init_rule(hook.rules, [first])
    except ValueError as error:
        raise ValueError(
            f"default_hooks.checkpoint.save_best='auto' takes the first score, {first}, for which "
            "MMEngine knows no rule: set default_hooks.checkpoint.rule='greater' or 'less'"
        ) from error


def check_scored_file(cfg: Config, split: str, read: Callable) -> Iterator[Finding]:
    """Compare the images in the JSON files of the metrics of a split with those of its data set."""
    datasets = [*dataset_configs(cfg.get(f'{split}_dataloader') or {})]
    metrics = [*_metrics(cfg, split)]
    files = [_json_file(metric) for _, metric in metrics]
    path = _json_file(datasets[0]) if len(datasets) == 1 else ''
    if not path or osp.realpath(path) in map(osp.realpath, files):
        return
    try:
        images = _boxes(read(path))
    except (OSError, ValueError, KeyError, TypeError):  # reported for the data set
        return
    for (option, metric), other in zip(metrics, files):
        if not other:
            continue
        option += '.ann_file'
        try:
            found = check_coco(read(other), trained=False)
            if 'CocoMetric' in str(metric['type']):  # others read other formats
                yield from (each._replace(where=f'{other}: {each.where}') for each in found)
            others = _boxes(read(other))
        except (OSError, ValueError) as error:
            yield Finding('annotation', option, f'{other!r} cannot be read: {error}', True)
            continue
        except (KeyError, TypeError):  # reported above, or another format
            continue
        # The images of a test set may have objects in the file of the metric alone.
        named_only = not any(images.values())
        lost = [key for key, boxes in images.items()
                if key not in others or not (named_only or others[key] == boxes)]  # fmt: skip
        if lost:
            number, name = lost[0]
            what = f'is {other!r}, which lacks {len(lost)} of the {len(images)} images that '
            what += f'{split}_dataloader reads from {path!r}, or has other objects in them, such '
            what += f'as {name!r} with the id {number!r}: set {option}={path!r}'
            yield Finding('annotation', option, what, True)


def _metrics(cfg: Config, split: str) -> Iterator[Tuple[str, dict]]:
    """Yield the place of each metric of a split, such as ``'val_evaluator[0]'``, and its config."""
    evaluator = cfg.get(f'{split}_evaluator') or []
    several = isinstance(evaluator, (list, tuple))
    for i, metric in enumerate(evaluator if several else [evaluator]):
        if isinstance(metric, dict):
            yield f'{split}_evaluator{f"[{i}]" if several else ""}', metric


def _boxes(content: dict) -> Dict[Any, list]:
    """Return the boxes of each image of a COCO file, by (id, file name)."""
    boxes: Dict[Any, list] = {image['id']: [] for image in content['images']}
    for record in content.get('annotations') or ():
        boxes[record['image_id']].append((record['category_id'], record['bbox']))
    return {(i['id'], i['file_name']): sorted(boxes[i['id']]) for i in content['images']}


def _json_file(config: Any) -> str:
    """Return the JSON file that a config of a data set or metric names, or ''."""
    named = isinstance(config, dict) and isinstance(config.get('ann_file'), str)
    path = annotation_path(config) if named else ''
    return path if path.endswith('.json') else ''


def _segmentation(metric: BaseMetric, model: nn.Module) -> Sample:
    metric.output_dir = None
    classes = torch.zeros(1, 4, 4, dtype=torch.int64)
    return dict(pred_sem_seg=dict(data=classes), gt_sem_seg=dict(data=classes))


def _classification(metric: BaseMetric, model: nn.Module) -> Optional[Sample]:
    names = (metric.dataset_meta or {}).get('classes') or ()
    number = number_of_classes(model) or len(names)
    scores = torch.ones(number) / max(number, 1)
    return dict(pred_score=scores, gt_label=torch.tensor([0])) if number else None


def _detection(metric: BaseMetric, model: nn.Module) -> Optional[Sample]:
    metric.outfile_prefix = None
    image, side = 0, 8
    if metric._coco_api is not None:
        image = next(iter(metric._coco_api.imgs), None)
        metric.img_ids = [image]
    found = dict(
        bboxes=torch.tensor([[0.0, 0, side, side]]),
        scores=torch.ones(1),
        labels=torch.zeros(1, dtype=torch.int64),
    )
    roi_head = getattr(model, 'roi_head', None)
    if roi_head is None or roi_head.with_mask:  # other detectors may have masks
        found['masks'] = torch.ones(1, side, side, dtype=torch.bool)
    corners = [0, 0, side, 0, side, side]
    instance = dict(bbox=[0, 0, side, side], bbox_label=0, ignore_flag=0, mask=[corners])
    sample = dict(ori_shape=(side, side), pred_instances=found, instances=[instance])
    return None if image is None else dict(sample, img_id=image)


def _reconstruction(metric: BaseMetric, model: nn.Module) -> Sample:
    image = torch.zeros(3, 16, 16, dtype=torch.uint8)
    return dict(gt_img=image, pred_img=image, codes=torch.tensor([0]), num_codes=1)


SAMPLES: Dict[str, Callable[[BaseMetric, nn.Module], Optional[Sample]]] = {
    'IoUMetric': _segmentation,
    'CocoMetric': _detection,
    'Accuracy': _classification,
    'SingleLabelMetric': _classification,
    'ReconstructionMetric': _reconstruction,
}
