"""Building and initialising the attentions of a backbone."""

import inspect
from typing import Any, Callable, Dict, Iterable, Sequence, Type, Union

from mmengine.registry import MODELS
from torch import nn

from ...utils.suggest import NAMED, did_you_mean, option_names, unknown_option
from .base import BaseAttention

AttnCfg = Union[str, dict, Type[BaseAttention]]
AttnCfgs = Union[AttnCfg, Sequence[AttnCfg]]  # see expand_attn_cfg
SHORT_NAMES = dict(softmax='SoftmaxAttention')  # in the short form of a hybrid


def registered_subclasses(base: type) -> Dict[str, type]:
    """Return the registered subclasses of a class by name, in alphabetical order."""
    found = sorted(MODELS.module_dict.items())
    return {n: cls for n, cls in found if isinstance(cls, type) and issubclass(cls, base)}


def build_part(
    argument: str, base: type, cfg: Union[str, dict], also_known: Iterable[str] = (), **given: Any
) -> Any:
    """Build a part of an attention, a subclass of ``base``, from a name or a config.

    Messages have the name of the ``argument``, and ``also_known`` beside the registered names.
    ``given`` are options of the constructor that the config does not have.

    Raises:
        ValueError: the type is unknown; the message names the known ones.
        TypeError: the config lacks an option, or has an unknown one.
    """
    cfg = dict(cfg) if isinstance(cfg, dict) else dict(type=cfg)
    kind = cfg.pop('type', None)
    cls = _registered(kind) if isinstance(kind, str) else kind
    if not (isinstance(cls, type) and issubclass(cls, base)):
        known = [*also_known, *registered_subclasses(base)]
        hint = did_you_mean(kind, known) if isinstance(kind, str) else ''
        raise ValueError(f'{argument} must be one of {known}, got {kind!r}{hint}')
    try:
        return cls(**given, **cfg)
    except TypeError:
        parameters = inspect.signature(cls).parameters.values()
        required = {p.name for p in parameters if p.default is p.empty and p.kind in NAMED}
        for name in sorted(required - cfg.keys() - given.keys()):
            raise TypeError(f'{argument}=dict(type={cls.__name__!r}, ...) needs {name}') from None
        for name in sorted(cfg.keys() - option_names(cls)):
            raise TypeError(f'{argument}: {unknown_option(cls, name)}') from None
        raise


def _registered(name: str) -> Any:
    """Return what is registered with a name, or None."""
    # A class with this name in the active scope, such as 'mmdet', comes first.
    with MODELS.switch_scope_and_registry(None) as registry:
        return registry.get(name) if name else None


def find_attention(attn_cfg: AttnCfg, also_known: Iterable[str] = ()) -> Type[BaseAttention]:
    """Return the class of an attention; ``also_known`` are further names to suggest.

    Raises:
        KeyError: the type is not registered; the message names the types of this package.
        TypeError: the type is missing or not an attention.
    """
    if isinstance(attn_cfg, dict) and 'type' not in attn_cfg:
        raise TypeError(f"attn_cfg needs 'type', or 'default' for a hybrid; got {attn_cfg!r}")
    kind = name = attn_cfg['type'] if isinstance(attn_cfg, dict) else attn_cfg
    if isinstance(name, str):
        kind = _registered(name)
        if kind is None:
            known = list(registered_subclasses(BaseAttention))
            similar = did_you_mean(SHORT_NAMES.get(name, name), [*also_known, *known])
            hint = similar or f'; this package has {known}.'
            raise KeyError(
                f'attention {name!r} is not registered{hint} If it is your own, register it, '
                'with MODELS of mmengine.registry, and name its module in custom_imports'
            )
    if not (isinstance(kind, type) and issubclass(kind, BaseAttention)):
        raise TypeError(f'attn_cfg must have a BaseAttention as its type, got {attn_cfg!r}')
    return kind


def build_attention(
    attn_cfg: AttnCfg, embed_dims: int, num_heads: int, **backbone_options: Any
) -> BaseAttention:
    """Build an attention for a backbone.

    Args:
        attn_cfg: config, name or class of a registered attention.
        embed_dims, num_heads: values of the backbone; the config can override them.
        backbone_options: options that the backbone provides. An attention receives those that it
            lists in ``backbone_options``, unless the config sets them.

    Raises:
        KeyError, TypeError: the attention is unknown, or lacks an option of the config.

    Example:
        >>> attn = build_attention('SoftmaxAttention', embed_dims=64, num_heads=2, sr_ratio=8)
        >>> type(attn).__name__  # SoftmaxAttention has no sr_ratio and ignores it
        'SoftmaxAttention'
    """
    kind = find_attention(attn_cfg)
    cfg = dict(attn_cfg) if isinstance(attn_cfg, dict) else {}
    cfg.pop('type', None)
    provided = {k: backbone_options[k] for k in kind.backbone_options if k in backbone_options}
    try:
        return kind(**(dict(provided, embed_dims=embed_dims, num_heads=num_heads) | cfg))
    except TypeError as error:
        wrong = [name for name in cfg if name not in option_names(kind)]
        reason = f'{error}'
        if wrong:
            kinds = registered_subclasses(BaseAttention).items()
            others = [name for name, other in kinds if wrong[0] in option_names(other)]
            reason = unknown_option(kind, wrong[0])
            if others:
                reason = f'it has no option {wrong[0]!r}, an option of {", ".join(others)}'
        raise TypeError(f'{kind.__name__} rejects attn_cfg={attn_cfg!r}: {reason}') from error


def init_layers(module: nn.Module, init: Callable[[Union[nn.Conv2d, nn.Linear]], None]) -> None:
    """Call ``init`` on the convolutions and linear layers of a module.

    Of an attention only the layers in ``projections`` are initialised.
    """
    for child in module.children():
        if isinstance(child, BaseAttention):
            child.init_projections(init)
        elif isinstance(child, (nn.Conv2d, nn.Linear)):
            init(child)
        else:
            init_layers(child, init)
