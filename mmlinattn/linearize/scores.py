"""Scores of the teacher and of the student's stages on the validation data of a config."""

import copy
from pathlib import Path
from typing import Dict, Optional

from mmengine.config import Config

from .. import evaluation  # noqa: F401  registers the metrics that configs name
from ..engine.preflight.weights import check_weights
from ..engine.runner.runner import PluginRunner

# Names of the score that summarises a framework's metrics, by priority.
MAIN = ('mIoU', 'coco/bbox_mAP', 'bbox_mAP', 'accuracy/top1', 'top1', 'mAP')
UNUSED = (
    'train_dataloader', 'train_cfg', 'optim_wrapper', 'param_scheduler',
    'test_dataloader', 'test_cfg', 'test_evaluator',
)  # fmt: skip


def score(
    cfg: Config, checkpoint: str, work_dir: Path, name: str, launcher: str = 'none'
) -> Dict[str, float]:
    """Return the scores of a checkpoint on ``val_dataloader``, by their names."""
    cfg = copy.deepcopy(cfg)
    for key in UNUSED:
        cfg.pop(key, None)
    cfg.work_dir, cfg.launcher, cfg.experiment_name = str(work_dir), launcher, f'score_{name}'
    cfg.load_from, cfg.resume = checkpoint, False
    if cfg.get('visualizer'):
        cfg.visualizer.pop('name', None)
    runner = PluginRunner.from_cfg(cfg)
    check_weights(runner, cfg, testing=True)
    return {name: float(value) for name, value in runner.val().items()}


def main_score(scores: Dict[str, float]) -> Optional[str]:
    """Return the name of the score that stands for all.

    Example:
        >>> main_score({'aAcc': 90.0, 'mIoU': 70.0})
        'mIoU'
    """
    for ending in MAIN:
        for name in scores:
            if name == ending or name.endswith(f'/{ending}'):
                return name
    return next(iter(scores), None)
