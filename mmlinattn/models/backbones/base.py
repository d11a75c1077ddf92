"""Base classes of all backbones."""

from numbers import Integral, Real
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

import torch
from mmengine.model import BaseModule, ModuleList, trunc_normal_init
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ...utils import check_integer
from ...utils.option_names import unknown_option
from ...utils.pretrained import initial_weights_read_safely
from ..layers import (
    AttnCfg,
    BaseAttention,
    expand_attn_cfg,
    init_layers,
    map_to_tokens,
    tokens_to_map,
)
from ..layers.activation_checkpointing import checkpoint_block

# Name of the tensor by which a converted file says what attention it was trained with, per stage.
TRAINED_ATTENTION = 'trained_attention'
OUT_TYPES = ('featmap', 'avg_featmap', 'cls_token')
Part = Union[nn.Module, nn.Parameter]
# Keys of an architecture whose values are integers.
INTEGERS = ('embed_dims', 'depths', 'num_heads', 'sr_ratios', 'global_tokens')


class Backbone(BaseModule):
    """Base class of all backbones, hierarchical or not.

    It handles architectures, one attention per stage, stochastic depth, output types, freezing and
    activation checkpointing. In a backbone without stages, such as ViT, "stage" means a layer.

    A subclass sets the class attributes and implements :meth:`count_stages`,
    :meth:`stochastic_depth`, :meth:`stem_layer`, :meth:`stage_parts`, :meth:`layer_groups` and, if
    needed, :meth:`init_layer`. Its constructor builds the modules and calls :meth:`finish` last.

    Args:
        arch: a name in ``architectures`` or ``arch_sizes``, or a dict with the keys of
            ``arch_required`` and optionally those of ``arch_defaults``.
        attn_cfg: config or name of the attention of all stages; a list with one per stage or one
            per layer; or the short form of a hybrid, ``dict(default='MALA', softmax=['last4'])``:
            see :func:`mmlinattn.models.layers.expand_attn_cfg`.
        out_indices: stages to return; stages after the last of them are not built.
        out_type: ``'featmap'`` for maps (B, C_i, H_i, W_i), ``'avg_featmap'`` for their means
            (B, C_i), or ``'cls_token'`` for the class token (B, C_i) if the backbone has one.
        drop_path_rate: overrides the rate of stochastic depth of the architecture, which rises
            linearly from 0 over the blocks.
        norm_eval: keep batch norms in eval mode in training.
        frozen_stages: -1 freezes nothing, 0 the stem, k also the first k stages.
        with_cp: use activation checkpointing in every block.
        init_cfg: for example ``dict(type='Pretrained', checkpoint=..., prefix='backbone.')``.
        pretrained: must be None. MMSegmentation sets it from ``model.pretrained`` of older bases.

    Attributes:
        layer_attn_cfgs: attention of each layer, over all stages.
        attn_cfgs: attention of each stage; a list with one per layer where they differ.
        architectures: architectures by the name that the paper gives.
        arch_sizes: the paper's name by size (``'tiny'``, ``'small'``, ``'base'``, ...), for papers
            that name their models otherwise.
        arch_required, arch_defaults: keys of an architecture, and values of optional keys.
        stage_name: ``'stage'`` or ``'layer'``, for messages.
        input_name, input_shape: the input, for messages.
        has_cls_token: True if the backbone can have a class token.

    Raises:
        ValueError: the architecture or an option value is unknown.
        KeyError: the attention is unknown.
    """

    architectures: Dict[str, dict] = {}
    arch_sizes: Dict[str, str] = {}
    arch_required: Tuple[str, ...] = ('embed_dims', 'depths')
    arch_defaults: dict = {}
    stage_name = 'stage'
    input_name, input_shape = 'image', '(B, C, H, W)'
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
        pretrained: Optional[str] = None,
        **unknown: Any,
    ) -> None:
        for name in unknown:
            raise TypeError(unknown_option(type(self), name))
        if pretrained is not None:
            raise ValueError(
                f'model.pretrained or backbone.pretrained is {pretrained!r}, which is of the '
                f'backbone of the base config: set it to None. Weights of {type(self).__name__} '
                'are named in model.backbone.init_cfg'
            )
        inits = init_cfg if isinstance(init_cfg, (list, tuple)) else [init_cfg or {}]
        if not all(isinstance(init, dict) for init in inits):
            raise ValueError(
                f"init_cfg must be a dict, such as dict(type='Pretrained', checkpoint=...), or a "
                f'list of them, got {init_cfg!r}'
            )
        super().__init__(init_cfg)
        self.arch = self._architecture(arch)
        count = self.count_stages()
        is_list = isinstance(out_indices, (list, tuple)) and out_indices
        are_stages = is_list and all(i in range(count) for i in out_indices)
        if not are_stages or len({*out_indices}) < len(out_indices):
            raise ValueError(
                f'out_indices must be a list of different {self.stage_name}s in 0..{count - 1}, '
                f'got {out_indices!r}'
            )
        is_integer = isinstance(frozen_stages, Integral) and not isinstance(frozen_stages, bool)
        if not is_integer or frozen_stages not in range(-1, count + 1):
            raise ValueError(f'frozen_stages must be in -1..{count}, got {frozen_stages!r}')
        if out_type not in OUT_TYPES:
            raise ValueError(f'out_type must be one of {OUT_TYPES}, got {out_type!r}')
        if out_type == 'cls_token' and not self.has_cls_token:
            raise ValueError(f'{type(self).__name__} has no class token for {out_type=}')
        self.out_indices = tuple(out_indices)
        self.out_type = out_type
        self.num_built = max(self.out_indices) + 1
        rate = self.arch['drop_path_rate'] if drop_path_rate is None else drop_path_rate
        self.drop_paths = self.stochastic_depth(rate)
        depths = [len(rates) for rates in self.drop_paths]
        self.layer_attn_cfgs = expand_attn_cfg(attn_cfg, count, self.stage_name, depths)
        self.attn_cfgs = _by_stage(self.layer_attn_cfgs, depths)
        self.norm_eval = norm_eval
        self.frozen_stages = frozen_stages
        self.with_cp = with_cp

    def count_stages(self) -> int:
        """Return the number of stages of the architecture."""
        raise NotImplementedError

    def _architecture(self, arch: Union[str, dict]) -> dict:
        """Return the architecture with the defaults filled in."""
        if isinstance(arch, str):
            name = self.arch_sizes.get(arch, arch)
            if name not in self.architectures:
                known = ', '.join(map(repr, self.architectures))
                sizes = ', '.join(f'{size!r} ({name})' for size, name in self.arch_sizes.items())
                raise ValueError(
                    f'{type(self).__name__}: arch must be one of {known}'
                    + (f', by size {sizes},' if sizes else '')
                    + f' or a dict, got {arch!r}'
                )
            arch = self.architectures[name]
        elif not isinstance(arch, dict):
            raise ValueError(f'arch must be a name or a dict, got {arch!r}')
        missing = [name for name in self.arch_required if name not in arch]
        unknown = sorted(set(arch) - set(self.arch_defaults) - set(self.arch_required))
        if missing or unknown:
            known = [*self.arch_required, *self.arch_defaults]
            raise ValueError(
                f'arch: missing keys {missing}, unknown keys {unknown}; it can have {known}'
            )
        return dict(self.arch_defaults, **arch)

    def stochastic_depth(self, rate: float) -> List[List[float]]:
        """Return the drop path rates of the blocks, one list per stage."""
        raise NotImplementedError

    def stem_layer(self) -> nn.Module:
        """Return the module before the first stage."""
        raise NotImplementedError

    def stage_parts(self, i: int) -> List[Part]:
        """Return the parts of stage ``i`` to freeze: modules, and parameters outside of them."""
        raise NotImplementedError

    def layer_groups(self) -> List[List[nn.Module]]:
        """Return the modules by depth: the stem, then each block with the downsampling before it.

        Norms of the outputs and later class tokens are in no group.
        """
        raise NotImplementedError

    def num_extra_tokens(self, i: int) -> int:
        """Return the number of extra tokens (class token, global tokens) of stage ``i``."""
        return 0

    def init_layer(self, layer: Union[nn.Conv2d, nn.Linear]) -> None:
        """Initialise a convolution or linear layer, also the projections of attentions.

        Linear layers: truncated normal (std 0.02), zero biases. Convolutions: default of torch.
        """
        if isinstance(layer, nn.Linear):
            trunc_normal_init(layer, std=0.02, bias=0)
        else:
            layer.reset_parameters()

    def packed_unsupported_reason(self) -> Optional[str]:
        """Return why the backbone does not take a list of images, or None if it does."""
        return f'{type(self).__name__} convolves maps between its stages'

    def check_input(self, x: Tensor) -> None:
        """Check the input; a subclass checks more.

        Raises:
            TypeError: it is a list, or no tensor of floats.
            ValueError: it has another number of dimensions.
        """
        if isinstance(x, (list, tuple)):
            vit = ', or use ViT' if self.input_name == 'image' else ''
            raise TypeError(
                f'{type(self).__name__} takes one tensor {self.input_shape}, got a list of '
                f'{len(x)} {self.input_name}s: call it for each {self.input_name}{vit}'
            )
        name = type(self).__name__
        if not isinstance(x, Tensor) or not x.is_floating_point():
            kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise TypeError(f'{name} takes a tensor {self.input_shape} of floats, got {kind}')
        count = self.input_shape.count(',') + 1
        if x.dim() != count:
            is_single = x.dim() == count - 1 and self.input_name == 'image'
            add = ': add a batch dimension, x[None]' if is_single else ''
            raise ValueError(f'{name} takes {self.input_shape}, got {tuple(x.shape)}{add}')

    def finish(self) -> None:
        """Check the attentions, set the memory format and freeze, after all modules are built."""
        for i in range(self.num_built):
            for part in self.stage_parts(i):
                for module in part.modules() if isinstance(part, nn.Module) else ():
                    if isinstance(module, BaseAttention):
                        module.check_extra_tokens(self.num_extra_tokens(i))
        # In channels_last, maps and tokens are views of the same memory.
        self.to(memory_format=torch.channels_last)
        self._freeze()

    def run_block(self, block: nn.Module, tokens: Tensor, *args) -> Tensor:
        """Return ``block(tokens, *args)``, with activation checkpointing if ``with_cp``."""
        if self.with_cp and torch.is_grad_enabled():
            return checkpoint_block(block, tokens, *args)
        return block(tokens, *args)

    def format_output(
        self, tokens: Tensor, hw_shape: Sequence[int], num_extra_tokens: int = 0
    ) -> Tensor:
        """Convert tokens (B, E + N, C) to the output given by ``out_type``."""
        if self.out_type == 'cls_token':
            return tokens[:, 0]
        if num_extra_tokens:
            tokens = tokens[:, num_extra_tokens:]
        if self.out_type == 'avg_featmap':
            return tokens.mean(1)
        # Operators of MMCV (RoIAlign, ...) assume contiguous maps without checking.
        return tokens_to_map(tokens, hw_shape).contiguous()

    def init_weights(self) -> None:
        """Call :meth:`init_layer` on all layers, then apply ``init_cfg``."""
        init_layers(self, self.init_layer)
        with initial_weights_read_safely(self):
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
        for part in [self.stem_layer(), *(part for i in frozen for part in self.stage_parts(i))]:
            part.requires_grad_(False)
            if isinstance(part, nn.Module):
                part.eval()


class HierarchicalBackbone(Backbone):
    """Base class of backbones with stages on successively smaller maps.

    A subclass sets the class attributes. ``arch_required`` and ``arch_defaults`` together contain
    at least ``embed_dims``, ``depths``, ``num_heads``, ``mlp_ratios`` and ``drop_path_rate``. Its
    constructor sets ``self.stages`` to MMEngine's ModuleList, calls :meth:`build_stage` for each
    stage and :meth:`finish` last. It implements :meth:`downsample_layer` and, if needed,
    :meth:`init_layer`, :meth:`extra_tokens`, :meth:`stage_norm` and :meth:`stage_parts`.
    ``docs/design.md`` has a complete example.

    Args:
        arch: see :class:`Backbone`. Values are lists with one number per stage, or one number for
            all stages; ``drop_path_rate`` is one number.
        attn_cfg: config or name of the attention of all stages, or a list with one per stage.
        out_indices: stages to return, all by default; stages after the last are not built.
        others: see :class:`Backbone`.

    Attributes:
        num_stages: number of stages, 4 by default.
        arch_may_be_zero: keys of an architecture whose values can be 0.

    Inputs:
        (B, in_channels, H, W).

    Returns:
        tuple of maps (B, C_i, H_i, W_i), contiguous, or (B, C_i) with another ``out_type``.

    Raises:
        ValueError: the architecture or an option value is unknown.
        KeyError: the attention is unknown.
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
        """Return the architecture with one value per stage for every key."""
        arch, count = super()._architecture(arch), self.num_stages
        for name in set(arch) - {'drop_path_rate'}:
            value, place = arch[name], f'arch[{name!r}]'
            arch[name] = values = (value,) * count if isinstance(value, Real) else value
            if not isinstance(values, (list, tuple)) or len(values) != count:
                raise ValueError(f'{place} must have {count} values, got {value!r}')
            if not all(isinstance(of, Real) and float(of) >= 0 for of in values):
                raise ValueError(f'{place} must be positive numbers, got {value!r}')
            if 0 in values and name not in self.arch_may_be_zero:
                raise ValueError(f'{place} must be positive, got {value!r}')
            if name in INTEGERS:
                least = 0 if name in self.arch_may_be_zero else 1
                arch[name] = tuple(check_integer(place, of, least) for of in values)
        return arch

    def count_stages(self) -> int:
        return self.num_stages

    def stochastic_depth(self, rate: float) -> List[List[float]]:
        return drop_path_rates(rate, self.arch['depths'])

    def build_stage(
        self, i: int, block: type, odd_block_options: Optional[dict] = None, **options
    ) -> None:
        """Append stage ``i`` with the depth of the architecture to ``self.stages``.

        Args:
            i: index of the stage.
            block: class of the blocks, called as ``block(embed_dims, num_heads, mlp_ratio,
                attn_cfg, drop_path=..., **options)``.
            odd_block_options: further options of the blocks 1, 3, ...
            options: options of all blocks.
        """
        sizes = (self.arch[name][i] for name in ('embed_dims', 'num_heads', 'mlp_ratios'))
        args = tuple(sizes)
        cfgs = expand_attn_cfg(self.attn_cfgs[i], len(self.drop_paths[i]), 'layer')
        blocks = ModuleList()
        for j, rate in enumerate(self.drop_paths[i]):
            block_options = (odd_block_options or {}) if j % 2 else {}
            blocks.append(block(*args, cfgs[j], drop_path=rate, **options, **block_options))
        self.stages.append(blocks)

    def downsample_layer(self, i: int) -> nn.Module:
        """Return the module before stage ``i``, which maps the previous map to that of the stage.

        For stage 0 it is the stem, which takes the image.
        """
        raise NotImplementedError

    def stem_layer(self) -> nn.Module:
        return self.downsample_layer(0)

    def layer_groups(self) -> List[List[nn.Module]]:
        groups = [[self.stem_layer()]]
        for i, blocks in enumerate(self.stages):
            before = [self.downsample_layer(i)] if i else []
            groups += [[*before, block] if not j else [block] for j, block in enumerate(blocks)]
        return groups

    def extra_tokens(self, i: int) -> Optional[Tensor]:
        """Return the extra tokens (1, E, C) that stage ``i`` prepends to its map, or None."""
        return None

    def num_extra_tokens(self, i: int) -> int:
        extra = self.extra_tokens(i)
        return 0 if extra is None else int(extra.shape[1])

    def stage_norm(self, i: int, tokens: Tensor) -> Tensor:
        """Normalise tokens (B, E + N, C) after stage ``i``, for its output and the next stage."""
        return tokens

    def output_norm(self, i: int, tokens: Tensor) -> Tensor:
        """Normalise the output of stage ``i``, tokens (B, E + N, C)."""
        return self.out_norms[str(i)](tokens) if self.out_norms else tokens

    def stage_parts(self, i: int) -> List[Part]:
        norm = [self.out_norms[str(i)]] if str(i) in self.out_norms else []
        return [self.downsample_layer(i), self.stages[i], *norm]

    def finish(self, norm_eps: Optional[float] = None) -> None:
        """Add the output norms, then call :meth:`Backbone.finish`.

        Args:
            norm_eps: eps of a LayerNorm over the channels of every output; None for no norms.
        """
        normed, dims = self.out_indices if norm_eps else (), self.arch['embed_dims']
        norms = {str(i): nn.LayerNorm(dims[i], norm_eps or 0.0) for i in normed}
        self.out_norms = nn.ModuleDict(norms)
        super().finish()

    def check_trained_attention(self, state_dict: dict, prefix: str, *_) -> None:
        """Raise ValueError if the file records other attentions than this model, or is damaged.

        A backbone with such files registers it by ``_register_load_state_dict_pre_hook``.
        """
        record = state_dict.pop(prefix + TRAINED_ATTENTION, None)
        if record is None:
            return
        try:
            theirs = bytes(record.flatten().tolist()).decode().split(',')
        except (TypeError, ValueError):
            raise ValueError(
                f'{prefix}{TRAINED_ATTENTION}, the record of the attentions that the weights were '
                'trained with, is damaged: convert the released file again'
            ) from None
        ours = [
            '+'.join(sorted({type(block.attn).__name__ for block in stage}))
            for stage in self.stages
        ]
        if theirs[: len(ours)] != ours:
            raise ValueError(
                f'the weights were trained with the attentions {", ".join(theirs)} in stages 1 to '
                f'{len(theirs)}, the {type(self).__name__} has {", ".join(ours)}: set attn_cfg, or '
                'convert with --any-attention to begin another attention from these weights'
            )

    def forward(self, x: Tensor) -> Tuple[Tensor, ...]:
        self.check_input(x)
        x = x.contiguous(memory_format=torch.channels_last)
        outs = []
        for i, blocks in enumerate(self.stages):
            x = self.downsample_layer(i)(x)
            hw_shape, tokens = tuple(x.shape[-2:]), map_to_tokens(x)
            extra, num_extra = self.extra_tokens(i), 0
            args: Tuple[Any, ...] = (hw_shape,)
            if extra is not None:
                num_extra = int(extra.shape[1])  # a trace shows sizes as tensors
                tokens, args = prepend_tokens(extra, tokens), (hw_shape, num_extra)
            for block in blocks:
                tokens = self.run_block(block, tokens, *args)
            tokens = self.stage_norm(i, tokens)
            if i in self.out_indices:
                outs.append(self.format_output(self.output_norm(i, tokens), hw_shape, num_extra))
            if i + 1 < len(self.stages):
                x = tokens_to_map(tokens[:, num_extra:] if num_extra else tokens, hw_shape)
        return tuple(outs)


def prepend_tokens(extra: Tensor, tokens: Tensor) -> Tensor:
    """Prepend extra tokens (1, E, C) to tokens (B, N, C), in the dtype of the latter.

    Returns:
        (B, E + N, C).
    """
    return torch.cat([extra.expand(tokens.shape[0], -1, -1).to(tokens.dtype), tokens], 1)


def _by_stage(cfgs: List[AttnCfg], depths: Sequence[int]) -> List[Any]:
    """Return the attention of each stage, a list where its layers differ."""
    stages, cfgs = [], list(cfgs)
    for depth in depths:
        stage, cfgs = cfgs[:depth], cfgs[depth:]
        stages.append(stage[0] if all(cfg == stage[0] for cfg in stage) else stage)
    return stages


def drop_path_rates(rate: float, depths: Sequence[int]) -> List[List[float]]:
    """Return drop path rates that rise from 0 to ``rate`` over all blocks, one list per stage.

    Raises:
        ValueError: ``rate`` is outside of [0, 1).

    Example:
        >>> drop_path_rates(0.5, (1, 2))
        [[0.0], [0.25, 0.5]]
    """
    if not isinstance(rate, (int, float)) or not 0 <= rate < 1:
        raise ValueError(f'drop_path_rate must be in [0, 1), got {rate!r}')
    rates = torch.linspace(0, rate, sum(depths), device='cpu').tolist()
    return [rates[sum(depths[:i]) : sum(depths[: i + 1])] for i in range(len(depths))]
