"""Parts of a model that start from a checkpoint."""

from typing import Any

from ..utils import dicts
from ..utils.pretrained import pretrained_inits


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
