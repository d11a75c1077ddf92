"""Test pipelines of configs for images in memory, with or without test-time augmentation."""

import copy
from math import prod
from typing import List, Sequence, Tuple

import numpy as np
from mmengine.config import Config, ConfigDict
from mmengine.dataset import Compose, pseudo_collate
from mmengine.registry import MODELS
from torch import nn

# Those of the frameworks' tools/test.py, for configs without `tta_model`.
MERGING = {
    'mmdet': dict(
        type='DetTTAModel', tta_cfg=dict(nms=dict(type='nms', iou_threshold=0.5), max_per_img=100)
    ),
    'mmseg': dict(type='SegTTAModel'),
    'mmpretrain': dict(type='AverageClsScoreTTA'),
}
FLIP_KEYS = ('flip', 'flip_direction')  # read by the merging models


def steps_of(cfg: Config) -> List[dict]:
    """Return the test pipeline of a config.

    Raises:
        ValueError: the config has none.
    """
    return list(_test_dataset(cfg)['pipeline'])


def without_loading(steps: Sequence[dict]) -> List[dict]:
    """Return a copy of a pipeline without the steps that load images or annotations.

    Example:
        >>> load, flip = dict(type='LoadAnnotations'), dict(type='RandomFlip', prob=1.0)
        >>> without_loading([load, dict(type='TestTimeAug', transforms=[[flip], [load]])])
        [{'type': 'TestTimeAug', 'transforms': [[{'type': 'RandomFlip', 'prob': 1.0}]]}]
    """
    steps = [step for step in copy.deepcopy(list(steps)) if not _name(step).startswith('Load')]
    for step in filter(_is_augmentation, steps):
        step['transforms'] = [*filter(None, map(without_loading, step['transforms']))]
    return steps


def input_of(pipeline: Compose, image: np.ndarray) -> dict:
    """Return the batch of one image for ``data_preprocessor`` or ``test_step`` of a model.

    Args:
        pipeline: steps of :func:`without_loading`, built in the scope of the config.
        image: (H, W, 3), uint8, BGR.
    """
    shape = image.shape[:2]
    known = dict(img=image, img_shape=shape, ori_shape=shape, img_path='', img_id=0, sample_idx=0)
    return pseudo_collate([pipeline(known)])


def augmented(cfg: Config, model: nn.Module) -> Tuple[nn.Module, List[dict], str]:
    """Wrap a model for test-time augmentation.

    Args:
        cfg: config, whose ``default_scope`` is the current scope.
        model: model of the config, in eval mode.

    Returns:
        the wrapped model, its pipeline, and a description, see :func:`augmentation`.

    Raises:
        ValueError: the model predicts masks, which MMDetection cannot merge.
    """
    check_augmentable(model)
    merging, steps, text = augmentation(cfg)
    return MODELS.build(ConfigDict(merging, module=model)).eval(), steps, text


def set_augmentation(cfg: Config) -> str:
    """Let a test of this config average the views of :func:`augmentation`, and describe them."""
    merging, steps, text = augmentation(cfg)
    _test_dataset(cfg)['pipeline'] = steps
    hook = dict(type='PrepareTTAHook', tta_cfg=merging)  # wraps the model that has its weights
    cfg.custom_hooks = [*(cfg.get('custom_hooks') or []), hook]
    return text


def augmentation(cfg: Config) -> Tuple[ConfigDict, List[dict], str]:
    """Return the merging model, without its module, the pipeline and a description of both.

    ``tta_model`` and ``tta_pipeline`` of the config are used. The defaults are those of the
    frameworks' test tools: the test pipeline with and without a horizontal flip.
    """
    own = 'tta_pipeline' in cfg
    steps = list(cfg.tta_pipeline) if own else flip_pipeline(steps_of(cfg))
    merging = ConfigDict(cfg.get('tta_model') or MERGING[cfg.default_scope])
    views = [prod(map(len, step['transforms'])) for step in filter(_is_augmentation, steps)]
    source = 'tta_pipeline of the config' if own else 'default: a horizontal flip'
    text = f'test-time augmentation: {prod(views)} views ({source}), merged by {merging["type"]}'
    return merging, steps, text


def check_augmentable(model: nn.Module) -> None:
    """Raise ValueError if the model predicts masks, which MMDetection cannot merge."""
    if _predicts_masks(model):
        raise ValueError(
            f'tta: {type(model).__name__} predicts masks, and DetTTAModel of MMDetection merges '
            'boxes only; run without it'
        )


def _test_dataset(cfg: Config) -> dict:
    """Return the config of the test data that has the pipeline, inside any wrappers."""
    dataset = (cfg.get('test_dataloader') or {}).get('dataset') or {}
    while 'pipeline' not in dataset and 'dataset' in dataset:
        dataset = dataset['dataset']
    if 'pipeline' not in dataset:
        raise ValueError('the config has no test_dataloader.dataset.pipeline')
    return dataset


def _predicts_masks(model: nn.Module) -> bool:
    """Return True for an instance segmentor of MMDetection: R-CNN, one stage, or Mask2Former."""
    head = getattr(model, 'bbox_head', None)
    single = hasattr(head, 'mask_head') or hasattr(model, 'panoptic_head')
    return single or getattr(model, 'with_mask', False)


def flip_pipeline(steps: Sequence[dict]) -> List[dict]:
    """Return a test pipeline that gives each image as it is and flipped horizontally.

    Args:
        steps: test pipeline that ends with the step that packs the inputs.
    """
    pack = dict(steps[-1])
    if 'meta_keys' in pack:
        pack['meta_keys'] = (*pack['meta_keys'], *FLIP_KEYS)
    flips = [dict(type='RandomFlip', prob=prob, direction='horizontal') for prob in (0.0, 1.0)]
    return [*steps[:-1], dict(type='TestTimeAug', transforms=[flips, [pack]])]


def _name(step: dict) -> str:
    kind = step['type']
    return kind.split('.')[-1] if isinstance(kind, str) else kind.__name__


def _is_augmentation(step: dict) -> bool:
    return _name(step) == 'TestTimeAug'
