"""Size of the image from which a hybrid of attentions is cheaper than softmax attention."""

from typing import Optional, Set

from mmengine.config import Config, ConfigDict
from mmengine.registry import DefaultScope
from torch import nn

from ..engine.model import build_model
from ..models.layers.build import find_attention
from .complexity import MIN_SIZE, analyse

MAX_SIZE = 4096


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
