"""Placement of attentions in the layers of a backbone."""

import re
from typing import Any, List, Sequence

from .build import SHORT_NAMES, AttnCfg, find_attention

SINGLE = (str, dict, type)


def is_hybrid(attn_cfg: Any) -> bool:
    """Return True for the short form of a hybrid, a dict with the key ``default``."""
    return isinstance(attn_cfg, dict) and 'default' in attn_cfg


def expand_attn_cfg(
    attn_cfg: Any, count: int, stage_name: str = 'stage', depths: Sequence[int] = ()
) -> List[AttnCfg]:
    """Return the ``attn_cfg`` of a backbone as a list with one attention per layer.

    Args:
        attn_cfg: one attention for all layers; a list with one per stage or one per layer; or the
            short form of a hybrid, a dict with ``default`` (any of the former) and the layers of
            other attentions: ``dict(default='MALA', softmax=[3, 7, 'last4'])``. Keys are names of
            registered attentions, or ``softmax`` for ``SoftmaxAttention``. A value is a list or
            range of layers, or a dict of these ``layers`` and the options of the attention. Layers
            count from 0 over all stages; ``'lastN'`` are the last N.
        count: number of stages.
        stage_name: ``'stage'`` or ``'layer'``, for the message.
        depths: number of layers of each stage; by default stages are layers.

    Raises:
        ValueError: the list has another length, contains no attention, or a layer does not exist
            or is named for two attentions.
        KeyError, TypeError: an attention is unknown.

    Example:
        >>> expand_attn_cfg('RALA', 2)
        ['RALA', 'RALA']
        >>> expand_attn_cfg(dict(default='MALA', RALA=[0], softmax=['last1']), 2, depths=(1, 2))
        ['RALA', 'MALA', 'SoftmaxAttention']
    """
    depths = list(depths) or [1] * count
    total = sum(depths)
    if is_hybrid(attn_cfg):
        return _place(dict(attn_cfg), count, stage_name, depths)
    cfgs = [attn_cfg] * count if isinstance(attn_cfg, SINGLE) else attn_cfg
    valid = isinstance(cfgs, (list, tuple)) and len(cfgs) in (count, total)
    if not valid or not all(isinstance(cfg, SINGLE) and not is_hybrid(cfg) for cfg in cfgs):
        by_layer = f' or {total}: one per layer' if total != count else ''
        raise ValueError(
            f'attn_cfg must be one attention, or {count}: one per {stage_name}{by_layer}; '
            f'got {attn_cfg!r}'
        )
    for cfg in cfgs:
        find_attention(cfg)
    if len(cfgs) == total:
        return list(cfgs)
    return [cfg for cfg, depth in zip(cfgs, depths) for _ in range(depth)]


def _place(attn_cfg: dict, count: int, stage_name: str, depths: List[int]) -> List[AttnCfg]:
    """Return the attentions of the short form of a hybrid."""
    if 'type' in attn_cfg:
        raise ValueError(
            f"attn_cfg has both 'type' ({attn_cfg['type']!r}) and 'default' "
            f'({attn_cfg["default"]!r}): add _delete_=True to replace that of the base config'
        )
    cfgs = expand_attn_cfg(attn_cfg.pop('default'), count, stage_name, depths)
    placed: dict = {}
    for name, value in attn_cfg.items():
        kind = SHORT_NAMES.get(name, name)
        find_attention(kind, SHORT_NAMES)
        options = dict(value) if isinstance(value, dict) else dict(layers=value)
        if 'layers' not in options:
            raise ValueError(f"attn_cfg: {name} needs 'layers', the layers it is for: {value!r}")
        if 'type' in options:
            raise ValueError(
                f"attn_cfg: {name} is the type, remove 'type' ({options['type']!r}) of its options"
            )
        layers = options.pop('layers')
        for layer in _layers(name, layers, len(cfgs)):
            if placed.setdefault(layer, name) != name:
                raise ValueError(f'attn_cfg: {placed[layer]} and {name} both name layer {layer}')
            cfgs[layer] = dict(options, type=kind) if options else kind
    return cfgs


def _layers(name: str, layers: Any, count: int) -> List[int]:
    """Return the indices of the layers that an attention is for."""
    found: List[int] = []
    for layer in layers if isinstance(layers, (list, tuple, range)) else [layers]:
        last = re.fullmatch(r'last([1-9]\d*)', layer) if isinstance(layer, str) else None
        if last is None and type(layer) is not int:
            raise ValueError(
                f"attn_cfg: {name} must name layers by numbers or 'lastN' (the last N), "
                f'got {layer!r}'
            )
        number = layer if last is None else count - int(last[1])
        if not 0 <= number < count:
            raise ValueError(
                f'attn_cfg: {name} names layer {layer!r}, but there are {count} layers, '
                f'0 to {count - 1}'
            )
        found += [number] if last is None else range(number, count)
    return found
