"""The model of a config: without weights, or with those of a checkpoint."""

import copy
import logging
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator, Sequence, Tuple, Union

import torch
from mmengine.config import Config
from mmengine.logging import MMLogger
from mmengine.registry import DATASETS, MODELS, DefaultScope
from torch import nn

from ..checkpoints import load_checkpoint, serve_mmengine


def build_model(cfg: Union[str, Path, Config]) -> nn.Module:
    """Build the model of a config, without its weights (meta device) where that is possible.

    Args:
        cfg: a config or its file, of any framework: ``default_scope`` tells which.

    Raises:
        ValueError: a config without a model.

    Example:
        >>> from mmengine.config import Config
        >>> cfg = Config(dict(model=dict(type='RAVLT', arch='tiny')))
        >>> next(build_model(cfg).parameters()).device.type
        'meta'
    """
    serve_mmengine()  # some models load a teacher when they are built
    cfg = cfg if isinstance(cfg, Config) else Config.fromfile(cfg)
    if 'model' not in cfg:
        raise ValueError(f'the config has no model: {cfg.filename or cfg}')
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope')), quiet():
        try:
            with torch.device('meta'):
                return MODELS.build(copy.deepcopy(cfg.model))
        except RuntimeError:
            # Some constructors compute with tensors.
            return MODELS.build(copy.deepcopy(cfg.model))


def load_model(cfg: Config, checkpoint: str, device: str = 'cpu') -> Tuple[nn.Module, dict]:
    """Build the model of a config with the weights of a checkpoint, to predict with.

    Args:
        cfg: what :func:`mmlinattn.engine.config.load_config` returns.
        checkpoint: a file or an address.
        device: where to put the model.

    Returns:
        the model in eval mode, with ``cfg`` as MMDetection's ``inference_detector`` wants it, and
        the checkpoint's meta information.

    Raises:
        FileNotFoundError: no such checkpoint.
        mmlinattn.checkpoints.CheckpointError: one that cannot be read or does not fit.
    """
    with quiet():
        model = MODELS.build(cfg.model)
    meta = load_checkpoint(model, checkpoint)
    model.cfg = cfg
    return model.to(device).eval(), meta


def class_names(cfg: Config, meta: dict, number: int) -> Sequence[str]:
    """Names of ``number`` classes: the checkpoint's, else those of the config's test data.

    Where neither has as many, they are numbers.
    """
    dataset = cfg.test_dataloader.dataset
    with DATASETS.switch_scope_and_registry(cfg.default_scope) as registry:
        kind = registry.get(dataset.type) if isinstance(dataset.type, str) else dataset.type
    own, of_kind = dataset.get('metainfo'), getattr(kind, 'METAINFO', None)
    for metainfo in (meta.get('dataset_meta'), own, of_kind):
        names = (metainfo or {}).get('classes', ())
        if len(names) == number:
            return names
    return [f'class {i}' for i in range(number)]


def number_of_classes(model: nn.Module) -> int:
    """Classes that a model of any of the frameworks tells apart."""
    for place in ('roi_head.bbox_head', 'bbox_head', 'decode_head', 'head'):
        part = model
        for name in place.split('.'):
            part = getattr(part, name, None)
        part = part[-1] if isinstance(part, nn.ModuleList) else part
        number = getattr(part, 'num_classes', None)
        if number is not None:
            return number
    return 0


@contextmanager
def quiet() -> Iterator[None]:
    """Without the frameworks' notes about how they build."""
    logger = MMLogger.get_current_instance()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            yield
    finally:
        logger.setLevel(level)
