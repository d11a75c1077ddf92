"""Hybrids of attentions in a config: their layers, and the size from which they are cheaper."""

from typing import Optional, Set

from mmengine.config import Config, ConfigDict
from mmengine.registry import DefaultScope
from torch import nn

from ..engine.model import build_model
from ..models.layers import expand_attn_cfg, is_hybrid
from ..models.layers.build import find_attention
from ..utils import dicts
from .complexity import MIN_SIZE, analyse

MAX_SIZE = 4096


def resolve_hybrids(cfg: Config) -> None:
    """Replace each short form of ``attn_cfg`` in the model by a list with one entry per layer.

    Raises:
        ValueError, KeyError: a layer or an attention does not exist; errors of the backbone.

    Example:
        >>> backbone = dict(type='ViT', attn_cfg=dict(default='MALA', softmax=['last11']))
        >>> cfg = Config(dict(model=dict(backbone, with_cls_token=False)))
        >>> resolve_hybrids(cfg)
        >>> cfg.model.attn_cfg[:2]
        ['MALA', 'SoftmaxAttention']
    """
    for _, node in list(dicts(cfg.get('model'), 'model')):
        layer_cfg = node.get('layer_cfg')
        if 'type' in node and is_hybrid(node.get('attn_cfg')):
            cfgs = getattr(_build(cfg, node), 'layer_attn_cfgs', None)
            node['attn_cfg'] = node['attn_cfg'] if cfgs is None else cfgs
        elif isinstance(layer_cfg, dict) and is_hybrid(layer_cfg.get('attn_cfg')):
            layers = node['num_layers']
            layer_cfg['attn_cfg'] = expand_attn_cfg(layer_cfg['attn_cfg'], layers, 'layer')


def attention_kinds(backbone: nn.Module) -> Set[type]:
    """Return the classes of the attentions in a backbone's ``layer_attn_cfgs``, none without it."""
    return {find_attention(cfg) for cfg in getattr(backbone, 'layer_attn_cfgs', ())}


def softmax_crossover(cfg: Config) -> Optional[int]:
    """Return the side of the square image from which on the backbone is cheaper than softmax.

    It compares all matrix products of ``model.backbone`` with those of the same backbone with
    ``SoftmaxAttention`` in all layers, at sides that are multiples of 32.

    Returns:
        The smallest side, or None if the backbone is not cheaper up to 4096 x 4096.

    Raises:
        ValueError: the config has no ``model.backbone`` that takes ``attn_cfg``.
    """
    backbone = cfg.get('model', {}).get('backbone', {})
    if 'attn_cfg' not in backbone:
        raise ValueError('the crossover needs a config with model.backbone.attn_cfg')
    attentions = backbone['attn_cfg'], 'SoftmaxAttention'
    models = [_build(cfg, dict(backbone, attn_cfg=attention)) for attention in attentions]

    def cheaper(side: int) -> bool:
        hybrid, softmax = (analyse(model, (side, side)).total for model in models)
        return hybrid < softmax

    # Softmax attention grows with the square of the number of tokens: one change of sign.
    low, high = 0, MAX_SIZE // MIN_SIZE
    if not cheaper(MAX_SIZE):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if cheaper(middle * MIN_SIZE) else (middle, high)
    return high * MIN_SIZE


def _build(cfg: Config, model: dict):
    scope = cfg.get('default_scope')
    with DefaultScope.overwrite_default_scope(scope):
        return build_model(Config(dict(model=ConfigDict(model), default_scope=scope)))
