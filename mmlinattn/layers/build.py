"""The seam between a host and its attentions."""

from typing import Callable, Dict, List, Sequence, Union

from mmengine.registry import MODELS
from torch import nn

from .base import BaseAttention

AttnCfg = Union[str, dict]


def registered(base: type) -> Dict[str, type]:
    """Registered subclasses of a class by name, in alphabetical order.

    Example:
        >>> 'RALA' in registered(BaseAttention)
        True
    """
    found = sorted(MODELS.module_dict.items())
    return {n: cls for n, cls in found if isinstance(cls, type) and issubclass(cls, base)}


def build_attention(
    attn_cfg: AttnCfg, embed_dims: int, num_heads: int, **offers: object
) -> nn.Module:
    """Builds an attention for a host.

    Args:
        attn_cfg: config of a registered attention, or just its name.
        embed_dims, num_heads: filled in by the host unless the config sets them.
        offers: what the host has for those options that the attention declares in
            ``host_options`` and that the config does not set.

    Raises:
        KeyError: a type that is not registered; the message names the types of this package.
        TypeError: an option that the attention does not have.

    Example:
        >>> attn = build_attention('SoftmaxAttention', embed_dims=64, num_heads=2, sr_ratio=8)
        >>> type(attn).__name__  # which has no sr_ratio
        'SoftmaxAttention'
    """
    cfg = dict(type=attn_cfg) if isinstance(attn_cfg, str) else dict(attn_cfg)
    kind = cfg.get('type')
    if isinstance(kind, str):
        name, kind = kind, MODELS.get(kind)
        if kind is None:
            known = list(registered(BaseAttention))
            raise KeyError(f'attention {name!r} is not registered; this package has {known}')
    taken = {name: offers[name] for name in getattr(kind, 'host_options', ()) if name in offers}
    return MODELS.build(dict(taken, embed_dims=embed_dims, num_heads=num_heads) | cfg)


def attention_cfgs(
    attn_cfg: Union[AttnCfg, Sequence[AttnCfg]], count: int, unit: str = 'stage'
) -> List[AttnCfg]:
    """A host's ``attn_cfg`` as a list: one attention for all, or one a stage or layer.

    Raises:
        ValueError: another number of attentions than ``count``.

    Example:
        >>> attention_cfgs('RALA', 2)
        ['RALA', 'RALA']
    """
    cfgs = [attn_cfg] * count if isinstance(attn_cfg, (str, dict)) else list(attn_cfg)
    if len(cfgs) != count:
        raise ValueError(
            f'attn_cfg must be one attention, or {count}: one a {unit}; got {attn_cfg!r}'
        )
    return cfgs


def init_layers(host: nn.Module, init: Callable[[nn.Module], None]) -> None:
    """Calls ``init`` with the convolutions and linear layers of a host, and with what its
    attentions declare as projections."""
    for child in host.children():
        if isinstance(child, BaseAttention):
            child.init_projections(init)
        elif isinstance(child, (nn.Conv2d, nn.Linear)):
            init(child)
        else:
            init_layers(child, init)
