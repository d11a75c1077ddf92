"""Config of the student: the teacher's config with linear attention in place of softmax."""

import copy
from typing import Any, List, NamedTuple, Sequence, Union

from mmengine.config import Config
from torch import nn

from ..engine.model import build_model
from ..engine.preflight.options import dicts
from ..models.backbones.base import Backbone
from ..models.layers import AttnCfg, expand_attn_cfg
from ..models.layers.base import BaseAttention
from ..models.layers.build import find_attention, registered_subclasses

# Attentions whose weights are a softmax over keys, with their subclasses.
SOFTMAX = (
    'SoftmaxAttention', 'SpatialReductionAttention', 'BiasedSoftmaxAttention',
    'ConvProjectionAttention', 'GatedPositionalAttention', 'VisionLongformerAttention',
)  # fmt: skip


class Plan(NamedTuple):
    """Config of the student, and the layers that differ from the teacher.

    Attributes:
        cfg: config of the student; its weights come from a checkpoint alone.
        replaced: indices of the layers with linear attention, over all stages.
        kept: indices of the layers that keep the teacher's softmax attention.
    """

    cfg: Config
    replaced: List[int]
    kept: List[int]


def plan_student(cfg: Config, attn_cfg: AttnCfg, keep: Sequence[Union[int, str]] = ()) -> Plan:
    """Replace the softmax attentions in the backbone of a config.

    Args:
        cfg: config of the teacher, from :func:`mmlinattn.engine.config.load_config`.
        attn_cfg: the linear attention, a name or a config.
        keep: layers that keep their attention: numbers from 0 over all stages, or ``'lastN'``.

    Raises:
        ValueError: the config has no backbone of this package or no softmax attention, ``keep``
            names a layer that does not exist or leaves nothing to replace, or the backbone cannot
            have the attention, for example because of its class token.
        KeyError, TypeError: the attention is unknown or lacks an option.

    Example:
        >>> vit = dict(type='ViT', arch='tiny', attn_cfg='SoftmaxAttention')
        >>> model = dict(type='ImageClassifier', backbone=vit)
        >>> cfg = Config(dict(default_scope='mmpretrain', model=model))
        >>> plan_student(cfg, 'MALA', ['last1']).cfg.model.backbone.attn_cfg
        {'default': 'MALA', 'SoftmaxAttention': [11]}
    """
    backbone = _backbone(cfg)
    kind, layers = type(backbone).__name__, backbone.layer_attn_cfgs
    softmax = [i for i, attn in enumerate(layers) if _is_softmax(attn)]
    if not softmax:
        names = ', '.join(sorted({_name(attn) for attn in layers}))
        raise ValueError(
            f'model.backbone, {kind} with {names}, has no softmax attention to replace'
        )
    if _is_softmax(attn_cfg):
        raise ValueError(
            f'--attn {_name(attn_cfg)} is softmax attention: name a linear one, such as MALA'
        )
    named = f'--keep-softmax {",".join(map(str, keep))}'
    try:
        marks = expand_attn_cfg(dict(default='MALA', softmax=list(keep)), len(layers), 'layer')
    except ValueError as error:
        raise ValueError(str(error).replace('attn_cfg: softmax', f'{named}:')) from None
    kept = [i for i in softmax if marks[i] != 'MALA']
    replaced = [i for i in softmax if i not in kept]
    if not replaced:
        raise ValueError(
            f'{named} leaves nothing to replace: the softmax layers of {kind} are '
            f'{", ".join(map(str, softmax))}'
        )
    if isinstance(attn_cfg, dict) and len(attn_cfg) == 1:
        attn_cfg = attn_cfg['type']
    cfgs = [attn_cfg if i in replaced else attn for i, attn in enumerate(layers)]
    student = copy.deepcopy(cfg)
    student.model.backbone.attn_cfg = _short_form(cfgs, attn_cfg)
    _remove_pretrained(student)
    try:
        build_model(student)
    except (KeyError, TypeError, ValueError) as error:
        text = error.args[0] if error.args else error
        raise type(error)(f'--attn {_name(attn_cfg)} in {kind}: {text}') from error
    return Plan(student, replaced, kept)


def attention_layers(backbone: nn.Module) -> List[str]:
    """Return the names of the attentions of a backbone's layers, in their order."""
    found: List[str] = []
    for name, module in backbone.named_modules():
        nested = any(name.startswith(f'{outer}.') for outer in found)
        if isinstance(module, BaseAttention) and not nested:
            found.append(name)
    return found


def _backbone(cfg: Config) -> Backbone:
    if not (cfg.get('model') or {}).get('type'):
        raise ValueError('the config has no model.type')
    backbone = getattr(build_model(cfg), 'backbone', None)
    if not isinstance(backbone, Backbone):
        names = ', '.join(registered_subclasses(Backbone))
        raise ValueError(
            f'model.backbone is {type(backbone).__name__}; linearize takes those of this package: '
            f'{names}. Released weights of others convert: docs/weights.md'
        )
    return backbone


def _is_softmax(attn_cfg: AttnCfg) -> bool:
    kinds = registered_subclasses(BaseAttention)
    return issubclass(find_attention(attn_cfg), tuple(kinds[name] for name in SOFTMAX))


def _name(attn_cfg: AttnCfg) -> str:
    return find_attention(attn_cfg).__name__


def _short_form(cfgs: List[AttnCfg], attn_cfg: AttnCfg) -> Any:
    """Return the attentions of all layers as the shortest ``attn_cfg``."""
    others = [(i, cfg) for i, cfg in enumerate(cfgs) if cfg != attn_cfg]
    if not others:
        return attn_cfg
    layers, first = [i for i, _ in others], others[0][1]
    if any(cfg != first for _, cfg in others) or _name(first) == _name(attn_cfg):
        return cfgs
    options = dict(first) if isinstance(first, dict) else {}
    options.pop('type', None)
    return {'default': attn_cfg, _name(first): dict(options, layers=layers) if options else layers}


def _remove_pretrained(cfg: Config) -> None:
    """Remove what would load other weights when the model is initialised."""
    for _, node in list(dicts(cfg.model, 'model')):
        init_cfg = node.get('init_cfg')
        inits = init_cfg if isinstance(init_cfg, (list, tuple)) else [init_cfg or {}]
        if any(init.get('type') == 'Pretrained' for init in inits):
            node['init_cfg'] = None
        if 'pretrained' in node:
            node['pretrained'] = None
