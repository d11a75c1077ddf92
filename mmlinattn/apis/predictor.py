"""Inference with a model of MMDetection, MMSegmentation or MMPretrain."""

import copy
import time
from dataclasses import dataclass
from typing import List, Sequence, Tuple

import cv2
import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import Compose, pseudo_collate
from mmengine.registry import DefaultScope
from mmengine.structures import BaseDataElement

from ..engine.model import class_names, load_model, number_of_classes
from ..visualization.predictions import draw_prediction

TASKS = {'mmdet': 'detection', 'mmseg': 'segmentation', 'mmpretrain': 'classification'}


@dataclass(frozen=True)
class Prediction:
    """Prediction of one image.

    Attributes:
        sample: data sample of the framework, on the CPU.
        seconds: time of preprocessing, model and postprocessing.
    """

    sample: BaseDataElement
    seconds: float


class Predictor:
    """Predictor with the model of a config and the weights of a checkpoint.

    Args:
        cfg: config from :func:`mmlinattn.engine.config.load_config`.
        checkpoint: a file or a URL; loading it executes no code.
        device: device of the model.

    Attributes:
        task: ``'detection'``, ``'segmentation'`` or ``'classification'``.
        classes: class names.
        palette: one RGB triple per class.
        model: the model in eval mode.

    Raises:
        ValueError: a config of another framework, or without a test pipeline.
        FileNotFoundError, mmlinattn.checkpoints.CheckpointError: see
            :func:`mmlinattn.engine.model.load_model`.
    """

    def __init__(self, cfg: Config, checkpoint: str, device: str = 'cpu') -> None:
        scope = cfg.get('default_scope')
        if scope not in TASKS:
            raise ValueError(f'default_scope of the config must be of {[*TASKS]}, got {scope!r}')
        self.task, self.cfg = TASKS[scope], cfg
        with DefaultScope.overwrite_default_scope(scope):
            self.pipeline = Compose(pipeline_of_images(cfg))
            self.model, meta = load_model(cfg, checkpoint, device)
        self.classes = class_names(cfg, meta, number_of_classes(self.model))
        self.palette = palette_of(meta, cfg, len(self.classes))

    @torch.no_grad()
    def __call__(self, image: np.ndarray) -> Prediction:
        """Predict one image (H, W, 3), uint8, BGR."""
        start = time.perf_counter()
        with DefaultScope.overwrite_default_scope(self.cfg.default_scope):
            (sample,) = self.model.test_step(self.batch_of(image))
        return Prediction(sample.cpu(), time.perf_counter() - start)

    def batch_of(self, image: np.ndarray) -> dict:
        """Return the input of the model's ``test_step`` for one image (H, W, 3), uint8, BGR."""
        shape = image.shape[:2]
        known = dict(img=image, img_shape=shape, ori_shape=shape, img_path='', img_id=0)
        with DefaultScope.overwrite_default_scope(self.cfg.default_scope):
            return pseudo_collate([self.pipeline(dict(known, sample_idx=0))])

    def draw(
        self, image: np.ndarray, prediction: Prediction, min_score: float, enlarge: int = 1
    ) -> np.ndarray:
        """Draw a prediction on an image (H, W, 3), uint8, BGR; objects from ``min_score`` on.

        See :func:`mmlinattn.visualization.predictions.draw_prediction`, also for ``enlarge``.
        """
        rgb = cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
        look = (self.classes, self.palette, min_score, enlarge)
        drawn = draw_prediction(rgb, prediction.sample, *look)
        return cv2.cvtColor(drawn, cv2.COLOR_RGB2BGR)


def pipeline_of_images(cfg: Config) -> List[dict]:
    """Return the test pipeline of a config without the steps that load images or annotations."""
    dataset = (cfg.get('test_dataloader') or {}).get('dataset') or {}
    while 'pipeline' not in dataset and 'dataset' in dataset:
        dataset = dataset['dataset']
    if 'pipeline' not in dataset:
        raise ValueError('the config has no test_dataloader.dataset.pipeline')
    steps = copy.deepcopy(list(dataset['pipeline']))
    return [step for step in steps if not str(step['type']).split('.')[-1].startswith('Load')]


def palette_of(meta: dict, cfg: Config, number: int) -> Sequence[Tuple[int, int, int]]:
    """Return the class colours of the checkpoint or the config, else evenly spaced hues."""
    dataset = (cfg.get('test_dataloader') or {}).get('dataset') or {}
    for metainfo in (meta.get('dataset_meta'), dataset.get('metainfo')):
        palette = (metainfo or {}).get('palette')
        if palette is not None and len(palette) == number:
            return [tuple(map(int, color)) for color in palette]
    hues = np.zeros((1, max(number, 1), 3), np.uint8)
    hues[..., 0] = np.arange(max(number, 1)) * 180 // max(number, 1)
    hues[..., 1:] = 210
    return [tuple(map(int, color)) for color in cv2.cvtColor(hues, cv2.COLOR_HSV2RGB)[0]]
