"""The seam between a host and its attentions."""

from typing import Any, Callable, Dict, List, Sequence, Type, Union

from mmengine.registry import MODELS
from torch import nn

from .base import BaseAttention

AttnCfg = Union[str, dict, Type[BaseAttention]]


def registered(base: type) -> Dict[str, type]:
    """Registered subclasses of a class by name, in alphabetical order.

    Example:
        >>> 'RALA' in registered(BaseAttention)
        True
    """
    found = sorted(MODELS.module_dict.items())
    return {n: cls for n, cls in found if isinstance(cls, type) and issubclass(cls, base)}


def build_attention(
    attn_cfg: AttnCfg, embed_dims: int, num_heads: int, **offers: Any
) -> BaseAttention:
    """Build an attention for a host.

    Args:
        attn_cfg: config of a registered attention, or just its name or class.
        embed_dims, num_heads: filled in by the host unless the config sets them.
        offers: what the host has for those options that the attention declares in
            ``host_options`` and that the config does not set.

    Raises:
        KeyError: a type that is not registered; the message names the types of this package.
        TypeError: a type that is no attention, or an option that the attention does not have.

    Example:
        >>> attn = build_attention('SoftmaxAttention', embed_dims=64, num_heads=2, sr_ratio=8)
        >>> type(attn).__name__  # which has no sr_ratio
        'SoftmaxAttention'
    """
    cfg = dict(attn_cfg) if isinstance(attn_cfg, dict) else dict(type=attn_cfg)
    kind = name = cfg.pop('type', None)
    if isinstance(name, str):
        # A framework whose scope is on may have it registered as its own.
        with MODELS.switch_scope_and_registry(None) as registry:
            kind = registry.get(name)
        if kind is None:
            known = list(registered(BaseAttention))
            raise KeyError(f'attention {name!r} is not registered; this package has {known}')
    if not (isinstance(kind, type) and issubclass(kind, BaseAttention)):
        raise TypeError(f'attn_cfg must name a BaseAttention as its type, got {attn_cfg!r}')
    taken = {name: offers[name] for name in kind.host_options if name in offers}
    try:
        return kind(**(dict(taken, embed_dims=embed_dims, num_heads=num_heads) | cfg))
    except TypeError as error:
        raise TypeError(f'{kind.__name__} does not take attn_cfg={attn_cfg!r}: {error}') from error


def attention_cfgs(
    attn_cfg: Union[AttnCfg, Sequence[AttnCfg]], count: int, unit: str = 'stage'
) -> List[AttnCfg]:
    """A host's ``attn_cfg`` as a list: one attention for all, or one a stage or layer.

    Raises:
        ValueError: another number of attentions than ``count``, or no attention.

    Example:
        >>> attention_cfgs('RALA', 2)
        ['RALA', 'RALA']
    """
    one = (str, dict, type)
    cfgs = [attn_cfg] * count if isinstance(attn_cfg, one) else attn_cfg
    fits = isinstance(cfgs, (list, tuple)) and len(cfgs) == count
    if not fits or not all(isinstance(cfg, one) for cfg in cfgs):
        raise ValueError(
            f'attn_cfg must be one attention, or {count}: one a {unit}; got {attn_cfg!r}'
        )
    return list(cfgs)


def init_layers(host: nn.Module, init: Callable[[nn.Module], None]) -> None:
    """Call ``init`` with the convolutions and linear layers of a host, and with what its
    attentions declare as projections."""
    for child in host.children():
        if isinstance(child, BaseAttention):
            child.init_projections(init)
        elif isinstance(child, (nn.Conv2d, nn.Linear)):
            init(child)
        else:
            init_layers(child, init)
