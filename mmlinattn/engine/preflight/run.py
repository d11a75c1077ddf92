"""All checks of a config that need no built data set, in the order of their cost."""

from typing import Optional

from mmengine.config import Config
from torch import nn

from ..model import build_model
from .classes import check_heads, check_names
from .data import DataError, check_data, dataset_configs, lazy_dataset
from .evaluators import check_scored_file
from .model import check_channels


def check_run(cfg: Config, *splits: str) -> None:
    """Check model, folders, classes and annotation files before a run reads its data.

    Args:
        cfg: config from :func:`mmlinattn.engine.config.load_config`.
        splits: those that the run will use, of ``'train'``, ``'val'``, ``'test'``.

    Raises:
        ValueError: see :func:`check_channels`.
        FileNotFoundError: see :func:`check_data`.
        DataError: see :func:`check_data`, :func:`check_names`, :func:`check_heads` and
            :func:`check_scored_file`.
    """
    model = _built(cfg)
    if model is not None:
        check_channels(cfg, model)
    for split in splits:
        check_data(cfg, f'{split}_dataloader', f'{split}_evaluator')
    for split in splits:
        for config in dataset_configs(cfg.get(f'{split}_dataloader') or {}):
            try:
                dataset = lazy_dataset(config)
            except DataError as error:
                if isinstance(error.__cause__, TypeError):  # no data set of MMEngine
                    continue
                raise
            check_names(dataset)
            if model is not None:
                check_heads(model, getattr(dataset, 'metainfo', {}), f'{split}_dataloader')
        check_scored_file(cfg, split)


def _built(cfg: Config) -> Optional[nn.Module]:
    """Return the model, or None if it needs the process group of a distributed run."""
    try:
        return build_model(cfg)
    except ValueError as error:
        if 'process group' in str(error):
            return None
        raise
