"""Config of the student: the teacher's config with linear attention in place of softmax."""

import copy
from typing import Any, Dict, List, NamedTuple, Sequence, Union

from mmengine.config import Config
from torch import nn

from ..engine.model import build_model
from ..models.backbones.base import Backbone
from ..models.layers import AttnCfg, SoftmaxAttention, expand_attn_cfg
from ..models.layers.base import BaseAttention
from ..models.layers.build import find_attention, registered_subclasses
from ..utils.pretrained import remove_pretrained
from .parts import Part, options_of, parts_of


class StudentPlan(NamedTuple):
    """Config of the student, and the layers that differ from the teacher."""

    cfg: Config  # its weights come from a checkpoint alone
    replaced: List[int]  # layers with linear attention, see plan_student
    kept: List[int]  # layers that keep the teacher's softmax attention
    parts: List[str]  # with replaced layers: 'backbone', 'encoder'
    carries_cores: bool  # the backbone carries cores, without which no layer can learn alone


def plan_student(
    cfg: Config, attn_cfg: AttnCfg, keep: Sequence[Union[int, str]] = ()
) -> StudentPlan:
    """Replace the softmax attentions in backbone and encoder of a config.

    Layers count from 0 over all stages of the backbone up to its last output, then over the encoder
    of SMCA. A backbone counts if it is of this package and has softmax attention.

    Args:
        cfg: config of the teacher, from :func:`mmlinattn.engine.config.load_config`.
        attn_cfg: the linear attention, a name or a config.
        keep: layers that keep their attention: numbers, or ``'lastN'``.

    Raises:
        ValueError: the config has no backbone or encoder of this package or no softmax attention,
            ``keep`` names a layer that does not exist or leaves nothing to replace, or a part
            cannot have the attention, for example because of its class token.
        KeyError, TypeError: the attention is unknown or lacks an option.

    Example:
        >>> vit = dict(type='ViT', arch='tiny', attn_cfg='SoftmaxAttention')
        >>> model = dict(type='ImageClassifier', backbone=vit)
        >>> cfg = Config(dict(default_scope='mmpretrain', model=model))
        >>> plan_student(cfg, 'MALA', ['last1']).cfg.model.backbone.attn_cfg
        {'default': 'MALA', 'SoftmaxAttention': [11]}
    """
    parts = _softmax_parts(cfg)
    kind = ' and '.join(type(part).__name__ for part in parts.values())
    layers = [(name, attn) for name, part in parts.items() for attn in _built(part)]
    softmax = [i for i, (_, attn) in enumerate(layers) if _is_softmax(attn)]
    if _is_softmax(attn_cfg):
        raise ValueError(
            f'--attn {_name(attn_cfg)} is softmax attention: name a linear one, such as MALA'
        )
    kept = _kept(softmax, keep, len(layers), kind)
    replaced = [i for i in softmax if i not in kept]
    if isinstance(attn_cfg, dict) and len(attn_cfg) == 1:
        attn_cfg = attn_cfg['type']
    student = copy.deepcopy(cfg)
    changed = [name for name in parts if name in {layers[i][0] for i in replaced}]
    for name in changed:
        options_of(student.model, name).attn_cfg = _short_form(
            [attn_cfg if i in replaced else attn
             for i, (part, attn) in enumerate(layers) if part == name]
            + [attn_cfg] * (len(parts[name].layer_attn_cfgs) - len(_built(parts[name]))),
            attn_cfg,
        )  # fmt: skip
    remove_pretrained(student.model)
    try:
        model = build_model(student)
    except (KeyError, TypeError, ValueError) as error:
        text = error.args[0] if error.args else error
        raise type(error)(f'--attn {_name(attn_cfg)} in {kind}: {text}') from error
    return StudentPlan(student, replaced, kept, changed, carries_cores(model))


def carries_cores(model: nn.Module) -> bool:
    """Return True if a backbone carries the cores of its attentions from layer to layer."""
    return any(m.num_carried_cores for m in model.modules() if isinstance(m, BaseAttention))


def attention_layers(model: nn.Module) -> List[str]:
    """Return the names of the attentions of a model's layers, in their order."""
    found: List[str] = []
    for name, module in model.named_modules():
        nested = any(name.startswith(f'{outer}.') for outer in found)
        if isinstance(module, BaseAttention) and not nested:
            found.append(name)
    return found


def _softmax_parts(cfg: Config) -> Dict[str, Part]:
    """Return the parts of a config's model that have softmax attention, by name."""
    if not (cfg.get('model') or {}).get('type'):
        raise ValueError('the config has no model.type')
    model = build_model(cfg)
    parts = parts_of(model)
    if not parts:
        names = ', '.join(registered_subclasses(Backbone))
        raise ValueError(
            f'model.backbone is {type(getattr(model, "backbone", None)).__name__}; linearize takes '
            f'those of this package, {names}, and the encoder of SMCA. Released weights of others '
            'convert: docs/weights.md'
        )
    found = {n: part for n, part in parts.items() if any(map(_is_softmax, _built(part)))}
    if not found:
        kinds = [
            f'model.{name}, {type(part).__name__} with '
            f'{", ".join(sorted(set(map(_name, _built(part)))))},'
            for name, part in parts.items()
        ]
        has = 'has' if len(kinds) == 1 else 'have'
        raise ValueError(
            f'{" and ".join(kinds)} {has} no softmax attention to replace: '
            'give config and checkpoint of the softmax model (backbones without attn_cfg)'
        )
    return found


def _built(part: Part) -> List[AttnCfg]:
    """Return the attentions of the layers; a backbone has none after its last output."""
    return part.layer_attn_cfgs[: len(attention_layers(part))]


def _kept(softmax: List[int], keep: Sequence[Union[int, str]], count: int, kind: str) -> List[int]:
    """Return the softmax layers among ``count`` layers that ``--keep-softmax`` names."""
    named = f'--keep-softmax {",".join(map(str, keep))}'
    try:
        marks = expand_attn_cfg(dict(default='MALA', softmax=list(keep)), count, 'layer')
    except ValueError as error:
        raise ValueError(str(error).replace('attn_cfg: softmax', f'{named}:')) from None
    kept = [i for i in softmax if marks[i] != 'MALA']
    if kept == softmax:
        raise ValueError(
            f'{named} leaves nothing to replace: the softmax layers of {kind} are '
            f'{", ".join(map(str, softmax))}'
        )
    return kept


def _is_softmax(attn_cfg: AttnCfg) -> bool:
    return issubclass(find_attention(attn_cfg), SoftmaxAttention)


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
