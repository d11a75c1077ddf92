"""Test pipelines of configs, for images in memory too."""

import copy
from typing import List, Sequence

import numpy as np
from mmengine.config import Config
from mmengine.dataset import Compose


def steps_of(cfg: Config) -> List[dict]:
    """Return the test pipeline of a config; raise ValueError if there is none."""
    return list(test_dataset(cfg)['pipeline'])


def without_loading(steps: Sequence[dict]) -> List[dict]:
    """Return a copy of a pipeline without the steps that load images or annotations.

    Example:
        >>> load, flip = dict(type='LoadAnnotations'), dict(type='RandomFlip', prob=1.0)
        >>> without_loading([load, dict(type='TestTimeAug', transforms=[[flip], [load]])])
        [{'type': 'TestTimeAug', 'transforms': [[{'type': 'RandomFlip', 'prob': 1.0}]]}]
    """
    steps = [step for step in copy.deepcopy(list(steps)) if not step_name(step).startswith('Load')]
    for step in steps:
        if step_name(step) == 'TestTimeAug':
            step['transforms'] = [*filter(None, map(without_loading, step['transforms']))]
    return steps


def packed_input(pipeline: Compose, image: np.ndarray) -> dict:
    """Return the output of a pipeline for one image.

    Args:
        pipeline: steps of :func:`without_loading`, built in the scope of the config.
        image: (H, W, 3), uint8, BGR.
    """
    shape = image.shape[:2]
    known = dict(img=image, img_shape=shape, ori_shape=shape, img_path='', img_id=0, sample_idx=0)
    return pipeline(known)


def test_dataset(cfg: Config) -> dict:
    """Return the config of the test data that has the pipeline, inside any wrappers.

    No pipeline, or several data sets that are joined, raise ValueError.
    """
    dataset = (cfg.get('test_dataloader') or {}).get('dataset') or {}
    while 'pipeline' not in dataset and 'dataset' in dataset:
        dataset = dataset['dataset']
    if 'datasets' in dataset:
        raise ValueError(
            f'test_dataloader.dataset joins several data sets ({dataset["type"]}), and their '
            'pipelines may differ: set it to one of them'
        )
    if 'pipeline' not in dataset:
        raise ValueError('the config has no test_dataloader.dataset.pipeline')
    return dataset


def step_name(step: dict) -> str:
    """Return the name of the class of a step."""
    kind = step['type']
    return kind.split('.')[-1] if isinstance(kind, str) else kind.__name__
