"""Initial weights that the ``init_cfg`` of a module or of a config names."""

from contextlib import contextmanager
from typing import Any, Iterator, List

from mmengine.model import PretrainedInit
from torch import nn

from .nested import dicts

# Scheme by which MMEngine reads a checkpoint with mmlinattn.checkpoints.read_checkpoint.
SAFE = 'safe://'


def pretrained_inits(init_cfg: Any) -> List[dict]:
    """Return the parts of an ``init_cfg`` (None, one dict or several) that load a checkpoint.

    Example:
        >>> pretrained_inits([dict(type='Constant'), dict(type='Pretrained', checkpoint='a.pth')])
        [{'type': 'Pretrained', 'checkpoint': 'a.pth'}]
    """
    listed = init_cfg if isinstance(init_cfg, (list, tuple)) else [init_cfg or {}]
    return [init for init in listed if init.get('type') in ('Pretrained', PretrainedInit)]


def without_pretrained(init_cfg: Any) -> Any:
    """Return an ``init_cfg`` without the parts that load a checkpoint; None if nothing is left."""
    pretrained = pretrained_inits(init_cfg)
    if not pretrained:
        return init_cfg
    listed = init_cfg if isinstance(init_cfg, (list, tuple)) else [init_cfg]
    return [init for init in listed if init not in pretrained] or None


def remove_pretrained(model_cfg: dict) -> None:
    """Remove from the config of a model what loads weights at its initialisation.

    Example:
        >>> cfg = dict(backbone=dict(init_cfg=dict(type='Pretrained', checkpoint='a.pth')))
        >>> remove_pretrained(cfg)
        >>> cfg
        {'backbone': {'init_cfg': None}}
    """
    for _, node in list(dicts(model_cfg)):
        if 'init_cfg' in node:
            node['init_cfg'] = without_pretrained(node['init_cfg'])
        if 'TIMMBackbone' in str(node.get('type')):  # reads weights by default
            node['pretrained'] = False
            node.pop('checkpoint_path', None)
        elif 'pretrained' in node:
            node['pretrained'] = False if isinstance(node['pretrained'], bool) else None


@contextmanager
def initial_weights_read_safely(model: nn.Module) -> Iterator[None]:
    """Let ``init_weights`` read checkpoints without running their code, as MMEngine does."""
    found = [pretrained_inits(getattr(module, 'init_cfg', None)) for module in model.modules()]
    inits = {id(init): init for part in found for init in part}.values()  # modules may share one
    for init in inits:
        init['checkpoint'] = f'{SAFE}{init["checkpoint"]}'
    try:
        yield
    finally:
        for init in inits:
            init['checkpoint'] = init['checkpoint'].removeprefix(SAFE)
