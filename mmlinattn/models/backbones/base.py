"""What all hosts share, so that a new one is its blocks and little more."""

from typing import Dict, List, Optional, Sequence, Tuple, Union

import torch
from mmengine.model import BaseModule, ModuleList, trunc_normal_init
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..layers import (
    AttnCfg,
    BaseAttention,
    attention_cfgs,
    init_layers,
    map_to_tokens,
    tokens_to_map,
)
from ..layers.activation_checkpointing import recomputed

OUT_TYPES = ('featmap', 'avg_featmap', 'cls_token')
Part = Union[nn.Module, nn.Parameter]


class Backbone(BaseModule):
    """What backbones with stages and plain ones share: sizes, an attention for each stage or
    layer, stochastic depth, forms of output, freezing, activation checkpointing.

    A subclass lists its sizes in the class attributes, overrides :meth:`count_units`,
    :meth:`stochastic_depth`, :meth:`lead`, :meth:`parts` and, for layers that start otherwise,
    :meth:`init_layer`, makes its parts, and ends its constructor with :meth:`finish`.

    Args:
        arch: a name in ``architectures``, or a dict with the keys of ``arch_needed`` and
            optionally those of ``arch_defaults``.
        attn_cfg: config or name of the attention of all units, or a list with one a unit.
        out_indices: units to return; those after the last of them are not built.
        out_type: ``'featmap'`` for maps (B, C_i, H_i, W_i), ``'avg_featmap'`` for their means
            (B, C_i), or ``'cls_token'`` for the class token (B, C_i) of a host that has one.
        drop_path_rate: overrides the architecture's rate of stochastic depth, which rises
            linearly from 0 over the blocks.
        norm_eval: keep batch norms in eval mode in training.
        frozen_stages: -1 nothing, 0 what leads into the first unit, k also the first k units.
        with_cp: activation checkpointing in every block.
        init_cfg: for example ``dict(type='Pretrained', checkpoint=..., prefix='backbone.')``.

    Raises:
        ValueError: an unknown architecture or option value.
        KeyError: an unknown attention.
    """

    architectures: Dict[str, dict] = {}
    arch_needed: Tuple[str, ...] = ('embed_dims', 'depths')
    arch_defaults: dict = {}
    unit = 'stage'
    has_cls_token = False

    def __init__(
        self,
        arch: Union[str, dict],
        attn_cfg: Union[AttnCfg, Sequence[AttnCfg]],
        out_indices: Sequence[int],
        out_type: str = 'featmap',
        drop_path_rate: Optional[float] = None,
        norm_eval: bool = False,
        frozen_stages: int = -1,
        with_cp: bool = False,
        init_cfg: Optional[Union[dict, List[dict]]] = None,
    ) -> None:
        super().__init__(init_cfg)
        self.arch = self._architecture(arch)
        count = self.count_units()
        units = isinstance(out_indices, (list, tuple)) and out_indices
        if not units or any(i not in range(count) for i in out_indices):
            raise ValueError(
                f'out_indices must be a list of {self.unit}s in 0..{count - 1}, got {out_indices!r}'
            )
        if frozen_stages not in range(-1, count + 1):
            raise ValueError(f'frozen_stages must be in -1..{count}, got {frozen_stages}')
        if out_type not in OUT_TYPES:
            raise ValueError(f'out_type must be one of {OUT_TYPES}, got {out_type!r}')
        if out_type == 'cls_token' and not self.has_cls_token:
            raise ValueError(f'{type(self).__name__} has no class token for {out_type=}')
        self.attn_cfgs = attention_cfgs(attn_cfg, count, self.unit)
        self.out_indices = tuple(out_indices)
        self.out_type = out_type
        self.num_built = max(self.out_indices) + 1
        rate = self.arch['drop_path_rate'] if drop_path_rate is None else drop_path_rate
        self.drop_paths = self.stochastic_depth(rate)
        self.norm_eval = norm_eval
        self.frozen_stages = frozen_stages
        self.with_cp = with_cp

    def count_units(self) -> int:
        """How many stages or layers the architecture has."""
        raise NotImplementedError

    def _architecture(self, arch: Union[str, dict]) -> dict:
        """The architecture with all of its values."""
        if isinstance(arch, str):
            if arch not in self.architectures:
                known = tuple(self.architectures)
                raise ValueError(f'arch must be one of {known} or a dict, got {arch!r}')
            arch = self.architectures[arch]
        elif not isinstance(arch, dict):
            raise ValueError(f'arch must be a name or a dict, got {arch!r}')
        missing = [name for name in self.arch_needed if name not in arch]
        unknown = sorted(set(arch) - set(self.arch_defaults) - set(self.arch_needed))
        if missing or unknown:
            raise ValueError(f'arch: missing keys {missing}, unknown keys {unknown}')
        return dict(self.arch_defaults, **arch)

    def stochastic_depth(self, rate: float) -> List[List[float]]:
        """Rates of the blocks, a list for each unit."""
        raise NotImplementedError

    def lead(self) -> nn.Module:
        """What leads into the first unit."""
        raise NotImplementedError

    def parts(self, i: int) -> List[Part]:
        """What is frozen with unit ``i``: modules, and parameters that are in none of them."""
        raise NotImplementedError

    def num_extra_tokens(self, i: int) -> int:
        """How many tokens unit ``i`` has besides those of the map."""
        return 0

    def init_layer(self, layer: nn.Module) -> None:
        """Start a convolution or linear layer, of the host or a projection of an attention.

        Linear layers truncated normal (std 0.02), zero biases; convolutions by torch's own rule.
        """
        if isinstance(layer, nn.Linear):
            trunc_normal_init(layer, std=0.02, bias=0)
        else:
            layer.reset_parameters()

    def finish(self) -> None:
        """Checks, memory layout and freezing, once all parts are there."""
        for i in range(self.num_built):
            for part in self.parts(i):
                for module in part.modules() if isinstance(part, nn.Module) else ():
                    if isinstance(module, BaseAttention):
                        module.check_extra_tokens(self.num_extra_tokens(i))
        # Maps and tokens are then views of the same memory.
        self.to(memory_format=torch.channels_last)
        self._freeze()

    def run(self, block: nn.Module, tokens: Tensor, *args) -> Tensor:
        """``block(tokens, *args)``, checkpointed if asked for."""
        if self.with_cp and torch.is_grad_enabled():
            return recomputed(block, tokens, *args)
        return block(tokens, *args)

    def form(self, tokens: Tensor, hw_shape: Tuple[int, int], num_extra_tokens: int = 0) -> Tensor:
        """Tokens (B, E + N, C) as ``out_type`` says."""
        if self.out_type == 'cls_token':
            return tokens[:, 0]
        tokens = tokens[:, num_extra_tokens:]
        if self.out_type == 'avg_featmap':
            return tokens.mean(1)
        # MMCV's operators (RoIAlign, ...) read any map as if it were contiguous.
        return tokens_to_map(tokens, hw_shape).contiguous()

    def init_weights(self) -> None:
        """:meth:`init_layer` for all layers, then ``init_cfg``, if any, on top."""
        init_layers(self, self.init_layer)
        super().init_weights()

    def train(self, mode: bool = True) -> 'Backbone':
        super().train(mode)
        self._freeze()
        if mode and self.norm_eval:
            for module in self.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
        return self

    def _freeze(self) -> None:
        if self.frozen_stages < 0:
            return
        frozen = range(min(self.frozen_stages, self.num_built))
        for part in [self.lead(), *(part for i in frozen for part in self.parts(i))]:
            part.requires_grad_(False)
            if isinstance(part, nn.Module):
                part.eval()


class HierarchicalBackbone(Backbone):
    """A backbone of stages, each on a smaller map, with any attention of this package.

    A subclass lists its sizes in the class attributes (``arch_needed`` and ``arch_defaults`` have
    at least the widths, depths, heads, MLP ratios and the rate of stochastic depth), makes
    ``self.stages``, MMEngine's ModuleList that :meth:`build_stage` appends to, overrides
    :meth:`entry` and, where they differ, :meth:`init_layer`, :meth:`extra_tokens`, :meth:`leave`
    and :meth:`parts`, and ends its constructor with :meth:`finish`.
    ``docs/design.md`` has a whole one.

    Args:
        arch: as in :class:`Backbone`: one value a stage, four unless the host says otherwise, or
            one number for all; ``drop_path_rate`` is one number.
        attn_cfg: config or name of the attention of all stages, or a list with one a stage.
        out_indices: stages to return, all by default; those after the last of them are not built.
        others: see :class:`Backbone`.

    Inputs:
        (B, in_channels, H, W).

    Returns:
        tuple of maps (B, C_i, H_i, W_i), contiguous; channels_last is used inside only. Another
        ``out_type`` is (B, C_i).

    Raises:
        ValueError: an unknown architecture or option value.
        KeyError: an unknown attention.
    """

    stages: ModuleList
    num_stages = 4
    arch_may_be_zero: Tuple[str, ...] = ()

    def __init__(
        self,
        arch: Union[str, dict],
        attn_cfg: Union[AttnCfg, Sequence[AttnCfg]],
        out_indices: Optional[Sequence[int]] = None,
        **kwargs,
    ) -> None:
        out_indices = tuple(range(self.num_stages)) if out_indices is None else out_indices
        super().__init__(arch, attn_cfg, out_indices, **kwargs)

    def _architecture(self, arch: Union[str, dict]) -> dict:
        """The architecture with every value spelled out for all stages."""
        arch, count = super()._architecture(arch), self.num_stages
        for name in set(arch) - {'drop_path_rate'}:
            value = arch[name]
            arch[name] = value = (value,) * count if isinstance(value, (int, float)) else value
            if len(value) != count:
                raise ValueError(f'arch[{name!r}] must have {count} values, got {value}')
            least = min(value)
            if least < 0 or (least == 0 and name not in self.arch_may_be_zero):
                raise ValueError(f'arch[{name!r}] must be positive, got {value}')
        return arch

    def count_units(self) -> int:
        return self.num_stages

    def stochastic_depth(self, rate: float) -> List[List[float]]:
        return drop_path_rates(rate, self.arch['depths'])

    def build_stage(
        self, i: int, block: type, every_second: Optional[dict] = None, **options
    ) -> None:
        """Append stage ``i``: as many blocks as the architecture says.

        Each is ``block(embed_dims, num_heads, mlp_ratio, attn_cfg, drop_path=..., **options)``, the
        second, fourth, ... with the options ``every_second``, too.
        """
        sizes = (self.arch[name][i] for name in ('embed_dims', 'num_heads', 'mlp_ratios'))
        args = (*sizes, self.attn_cfgs[i])
        blocks = ModuleList()
        for j, rate in enumerate(self.drop_paths[i]):
            of_block = (every_second or {}) if j % 2 else {}
            blocks.append(block(*args, drop_path=rate, **options, **of_block))
        self.stages.append(blocks)

    def entry(self, i: int) -> nn.Module:
        """What leads into stage ``i``: the image, or the map of the stage before, to a map."""
        raise NotImplementedError

    def lead(self) -> nn.Module:
        return self.entry(0)

    def extra_tokens(self, i: int) -> Optional[Tensor]:
        """Tokens (1, E, C) that stage ``i`` has before those of its map, or None."""
        return None

    def num_extra_tokens(self, i: int) -> int:
        extra = self.extra_tokens(i)
        return 0 if extra is None else int(extra.shape[1])

    def leave(self, i: int, tokens: Tensor) -> Tensor:
        """Tokens (B, E + N, C) as they leave stage ``i``; those of the map go on to the next."""
        return tokens

    def output(self, i: int, tokens: Tensor) -> Tensor:
        """Tokens (B, E + N, C) that left stage ``i``, as they are returned."""
        return self.out_norms[str(i)](tokens) if self.out_norms else tokens

    def parts(self, i: int) -> List[Part]:
        norm = [self.out_norms[str(i)]] if str(i) in self.out_norms else []
        return [self.entry(i), self.stages[i], *norm]

    def finish(self, norm_eps: Optional[float] = None) -> None:
        """As :meth:`Backbone.finish`; ``norm_eps`` asks for a LayerNorm over the channels of every
        output."""
        normed, dims = self.out_indices if norm_eps else (), self.arch['embed_dims']
        self.out_norms = nn.ModuleDict({str(i): nn.LayerNorm(dims[i], norm_eps) for i in normed})
        super().finish()

    def forward(self, x: Tensor) -> Tuple[Tensor, ...]:
        x = x.contiguous(memory_format=torch.channels_last)
        outs = []
        for i, blocks in enumerate(self.stages):
            x = self.entry(i)(x)
            hw_shape, tokens = tuple(x.shape[-2:]), map_to_tokens(x)
            extra, num_extra = self.extra_tokens(i), self.num_extra_tokens(i)
            if extra is not None:
                tokens = prepend(extra, tokens)
            for block in blocks:
                tokens = self.run(block, tokens, hw_shape, *([num_extra] if num_extra else []))
            tokens = self.leave(i, tokens)
            x = tokens_to_map(tokens[:, num_extra:], hw_shape)
            if i in self.out_indices:
                outs.append(self.form(self.output(i, tokens), hw_shape, num_extra))
        return tuple(outs)


def prepend(extra: Tensor, tokens: Tensor) -> Tensor:
    """Tokens (B, N, C) behind extra ones (1, E, C): (B, E + N, C), in the type of the tokens."""
    return torch.cat([extra.expand(tokens.shape[0], -1, -1).to(tokens.dtype), tokens], 1)


def drop_path_rates(rate: float, depths: Sequence[int]) -> List[List[float]]:
    """Stochastic depth, from 0 up to ``rate`` over all blocks: a list a stage.

    Raises:
        ValueError: a rate outside of [0, 1).

    Example:
        >>> drop_path_rates(0.5, (1, 2))
        [[0.0], [0.25, 0.5]]
    """
    if not isinstance(rate, (int, float)) or not 0 <= rate < 1:
        raise ValueError(f'drop_path_rate must be in [0, 1), got {rate}')
    rates = torch.linspace(0, rate, sum(depths), device='cpu').tolist()
    return [rates[sum(depths[:i]) : sum(depths[: i + 1])] for i in range(len(depths))]
