"""Construction of models from configs, with or without the weights of a checkpoint."""

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
    """Build the model of a config, on the meta device (without weights) if its classes allow it.

    Args:
        cfg: a config or its file, of the framework that ``default_scope`` names.

    Raises:
        ValueError: the config has no model.

    Example:
        >>> from mmengine.config import Config
        >>> cfg = Config(dict(model=dict(type='RAVLT', arch='tiny')))
        >>> next(build_model(cfg).parameters()).device.type
        'meta'
    """
    serve_mmengine()  # some models load a teacher when built
    cfg = cfg if isinstance(cfg, Config) else Config.fromfile(cfg)
    if 'model' not in cfg:
        raise ValueError(f'the config has no model: {cfg.filename or cfg}')
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope')), quiet():
        try:
            with torch.device('meta'):
                return MODELS.build(copy.deepcopy(cfg.model))
        except RuntimeError:
            # Some constructors compute with tensor values, which meta tensors do not have.
            return MODELS.build(copy.deepcopy(cfg.model))


def load_model(cfg: Config, checkpoint: str, device: str = 'cpu') -> Tuple[nn.Module, dict]:
    """Build the model of a config with the weights of a checkpoint, for prediction.

    Args:
        cfg: config from :func:`mmlinattn.engine.config.load_config`.
        checkpoint: a file or an address.
        device: device of the returned model.

    Returns:
        The model in eval mode, with the attribute ``cfg`` that MMDetection's
        ``inference_detector`` needs, and the meta information of the checkpoint.

    Raises:
        FileNotFoundError: no such checkpoint.
        mmlinattn.checkpoints.CheckpointError: the checkpoint cannot be read or does not fit.
    """
    with quiet():
        model = MODELS.build(cfg.model)
    meta = load_checkpoint(model, checkpoint)
    model.cfg = cfg
    return model.to(device).eval(), meta


def class_names(cfg: Config, meta: dict, number: int) -> Sequence[str]:
    """Return the names of ``number`` classes, from the checkpoint, else from the test data.

    If neither has this number of classes, the names are ``'class 0'``, ``'class 1'`` etc.
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
    """Return the number of classes of a model of any framework, 0 if it is not known."""
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
    """Suppress log messages and warnings of the frameworks."""
    logger = MMLogger.get_current_instance()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            yield
    finally:
        logger.setLevel(level)
