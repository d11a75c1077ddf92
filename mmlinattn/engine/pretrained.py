"""Parts of a model that start from a checkpoint."""

from typing import Any, List

from mmengine.model import PretrainedInit

from ..utils import dicts


def pretrained_inits(init_cfg: Any) -> List[dict]:
    """Return the parts of an ``init_cfg`` that load a checkpoint.

    Args:
        init_cfg: None, one dict or several.

    Example:
        >>> pretrained_inits([dict(type='Constant'), dict(type='Pretrained', checkpoint='a.pth')])
        [{'type': 'Pretrained', 'checkpoint': 'a.pth'}]
    """
    return [init for init in _listed(init_cfg) if _is_pretrained(init)]


def without_pretrained(init_cfg: Any) -> Any:
    """Return an ``init_cfg`` without the parts that load a checkpoint; None if nothing is left."""
    if not pretrained_inits(init_cfg):
        return init_cfg
    return [init for init in _listed(init_cfg) if not _is_pretrained(init)] or None


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


def _listed(init_cfg: Any) -> List[dict]:
    return [*init_cfg] if isinstance(init_cfg, (list, tuple)) else [init_cfg or {}]


def _is_pretrained(init: dict) -> bool:
    return init.get('type') in ('Pretrained', PretrainedInit)
