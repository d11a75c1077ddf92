"""Construction of models from configs, with or without the weights of a checkpoint."""

import copy
import logging
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.logging import MMLogger
from mmengine.model import BaseModel, is_model_wrapper
from mmengine.optim import OptimWrapper
from mmengine.registry import DATASETS, MODELS, DefaultScope
from torch import nn

from ..checkpoints import load_checkpoint
from ..models.layers import optimize_for_cpu
from ..utils.pretrained import remove_pretrained


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
    cfg = cfg if isinstance(cfg, Config) else Config.fromfile(cfg)
    model_cfg = _with_preprocessor(cfg)
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope')), quiet():
        try:
            with torch.device('meta'):
                return MODELS.build(copy.deepcopy(model_cfg))
        except RuntimeError:
            # Some constructors compute with tensor values, which meta tensors do not have.
            return MODELS.build(copy.deepcopy(model_cfg))


def check_device(device: Optional[str]) -> str:
    """Return a device, or for None the one that MMEngine trains on: the GPU if there is one."""
    if device is None:
        return get_device()
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f'device must be cpu, cuda, cuda:1, ..., got {device!r}') from error
    count = torch.cuda.device_count() if found.type == 'cuda' else 0
    if found.type == 'cuda' and (found.index or 0) >= count:
        there = f'has {count} of them, counted from cuda:0' if count else 'has none'
        raise ValueError(
            f'device is {device!r}, but torch finds no such GPU: this machine {there} '
            '(mmlinattn doctor shows what torch finds). Leave it out, or give cpu'
        )
    return device


def load_model(cfg: Config, checkpoint: str, device: str = 'cpu') -> Tuple[BaseModel, dict]:
    """Build the model of a config with the weights of a checkpoint, for prediction.

    Args:
        cfg: config from :func:`mmlinattn.engine.config.load_config`.
        checkpoint: a file or an address.
        device: device of the returned model.

    Returns:
        The model in eval mode, on the CPU optimised by
        :func:`mmlinattn.optimize_for_cpu`, with the attribute ``cfg`` that MMDetection's
        ``inference_detector`` needs, and the meta information of the checkpoint.

    Raises:
        FileNotFoundError: no such checkpoint.
        ValueError: see :func:`check_device`.
        mmlinattn.checkpoints.CheckpointError: the checkpoint cannot be read or does not fit.
    """
    check_device(device)
    with quiet():
        model = MODELS.build(_with_preprocessor(cfg))
    meta = load_checkpoint(model, checkpoint)
    model.cfg = cfg
    return _for_prediction(model, device), meta


def initial_model(cfg: Config, seed: int = 0, device: str = 'cpu') -> BaseModel:
    """Build the model of a config with the weights that a training from scratch begins with.

    Pre-trained weights that the config names are not loaded. The model is in eval mode, on the CPU
    optimised by :func:`mmlinattn.optimize_for_cpu`.
    """
    check_device(device)
    model_cfg = copy.deepcopy(_with_preprocessor(cfg))
    remove_pretrained(model_cfg)
    torch.manual_seed(seed)
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope')), quiet():
        model = MODELS.build(model_cfg)
        model.init_weights()
    return _for_prediction(model, device)


def unwrapped(model: nn.Module) -> Any:
    """Return the model inside a wrapper for distributed training, or the model itself."""
    return model.module if is_model_wrapper(model) else model


def optim_wrappers(wrapper: OptimWrapper) -> Dict[str, OptimWrapper]:
    """Return the optimizers of a training by name; a single one has the name ``''``."""
    return getattr(wrapper, 'optim_wrappers', {'': wrapper})


def length_before(info: Mapping) -> int:
    """Return the iterations of an epoch in the message hub of a checkpoint, 0 if it has none."""
    return info.get('max_iters', 0) // (info.get('max_epochs') or 1)


def _with_preprocessor(cfg: Config) -> dict:
    if 'model' not in cfg:
        raise ValueError(f'the config has no model: {cfg.filename or cfg}')
    preprocessor = preprocessor_of(cfg)
    return dict(cfg.model, data_preprocessor=preprocessor) if preprocessor else cfg.model


def _for_prediction(model: BaseModel, device: str) -> BaseModel:
    if torch.device(device).type == 'cpu':
        optimize_for_cpu(model)
    model.to(device).eval()  # some return nothing, such as MMDetection's with a teacher
    return model


def preprocessor_of(cfg: Config) -> dict:
    """Return the config of the data preprocessor, inside the model or, as MMPretrain's, beside."""
    return dict(cfg.model.get('data_preprocessor') or cfg.get('data_preprocessor') or {})


def class_names(cfg: Config, meta: dict, number: int) -> Sequence[str]:
    """Return ``number`` names (0: any) of checkpoint or test data, else ``'class 0'``, ..."""
    for metainfo in metainfos(cfg, meta):
        names = metainfo.get('classes', ())
        if names and not isinstance(names, str) and number in (len(names), 0):
            return names
    return [f'class {i}' for i in range(number)]


def metainfos(cfg: Config, meta: dict) -> List[dict]:
    """Return the descriptions of the classes: of the checkpoint, the test data and their class."""
    dataset = (cfg.get('test_dataloader') or {}).get('dataset') or {}
    kind = dataset.get('type')
    with DATASETS.switch_scope_and_registry(cfg.default_scope) as registry:
        kind = registry.get(kind) if isinstance(kind, str) else kind
    found = (meta.get('dataset_meta'), dataset.get('metainfo'), getattr(kind, 'METAINFO', None))
    return [metainfo for metainfo in found if metainfo]


def number_of_classes(model: nn.Module) -> int:
    """Return the number of classes of a model of any framework, 0 if it is not known."""
    for place in ('roi_head.bbox_head', 'bbox_head', 'decode_head', 'head'):
        part = model
        for name in place.split('.'):
            part = getattr(part, name, None)
        part = part[-1] if isinstance(part, nn.ModuleList) else part
        number = getattr(part, 'num_classes', None)
        if number is not None:
            # A decode head with one class separates labels 0 and 1 by a sigmoid.
            return max(number, 2) if place == 'decode_head' else number
    return getattr(model, 'num_classes', 0)


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
