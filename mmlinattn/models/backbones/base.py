"""Base class of all backbones."""

from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

import torch
from mmengine.model import BaseModule, trunc_normal_init
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ...utils.pretrained import initial_weights_read_safely
from ...utils.suggest import unknown_option
from ..layers import AttnCfg, AttnCfgs, BaseAttention, expand_attn_cfg, init_layers, tokens_to_map
from ..layers.activation_checkpointing import checkpoint_block

OUT_TYPES = ('featmap', 'avg_featmap', 'cls_token')
Part = Union[nn.Module, nn.Parameter]


class Backbone(BaseModule):
    """Base class of all backbones, hierarchical or not.

    A subclass sets the class attributes and implements the methods that raise
    NotImplementedError. Its constructor builds the modules and calls :meth:`finish` last. In a
    backbone without stages, such as ViT, "stage" means a layer.

    Args:
        arch: a name, or a dict with ``arch_required`` and optionally ``arch_defaults``.
        attn_cfg: the attention of all stages, of each stage or layer, or the short form of a
            hybrid: see :func:`mmlinattn.models.layers.expand_attn_cfg`.
        out_indices: stages to return; stages after the last of them are not built.
        out_type: ``'featmap'``, maps (B, C_i, H_i, W_i); ``'avg_featmap'``, their means (B, C_i);
            or ``'cls_token'``, the class token (B, C_i), if there is one.
        drop_path_rate: overrides that of the architecture; it rises linearly over the blocks.
        norm_eval: keep batch norms in eval mode in training.
        frozen_stages: -1 freezes nothing, 0 the stem, k also the first k stages.
        with_cp: use activation checkpointing in every block.
        init_cfg: for example ``dict(type='Pretrained', checkpoint=..., prefix='backbone.')``.
        pretrained: must be None; MMSegmentation sets it.

    Attributes:
        layer_attn_cfgs, attn_cfgs: attentions of the layers, and of the stages.
        architectures: architectures by the name that the paper gives.
        arch_sizes: the paper's name by size (``'tiny'``, ...), where it names them otherwise.
        arch_required, arch_defaults: keys of an architecture, and values of optional keys.
        stage_name, input_name, input_shape: for messages.
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
        attn_cfg: AttnCfgs,
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
        rate = self.arch['drop_path_rate'] if drop_path_rate is None else drop_path_rate
        self.drop_paths = self.stochastic_depth(rate)
        count = len(self.drop_paths)
        outs = out_indices if isinstance(out_indices, (list, tuple)) else ()
        if not outs or len({*outs} & {*range(count)}) < len(outs):
            raise ValueError(
                f'out_indices must be a list of different {self.stage_name}s in 0..{count - 1}, '
                f'got {out_indices!r}'
            )
        if type(frozen_stages) is not int or frozen_stages not in range(-1, count + 1):
            raise ValueError(f'frozen_stages must be in -1..{count}, got {frozen_stages!r}')
        if out_type not in OUT_TYPES:
            raise ValueError(f'out_type must be one of {OUT_TYPES}, got {out_type!r}')
        if out_type == 'cls_token' and not self.has_cls_token:
            raise ValueError(f'{type(self).__name__} has no class token for {out_type=}')
        self.out_indices = tuple(out_indices)
        self.out_type = out_type
        self.num_built = max(self.out_indices) + 1
        depths = [len(rates) for rates in self.drop_paths]
        self.layer_attn_cfgs = expand_attn_cfg(attn_cfg, count, self.stage_name, depths)
        self.attn_cfgs = _by_stage(self.layer_attn_cfgs, depths)
        self.norm_eval = norm_eval
        self.frozen_stages = frozen_stages
        self.with_cp = with_cp

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

    def layer_groups(self) -> List[List[Part]]:
        """Return parts by depth: stem, then blocks with their downsampling; no output norms."""
        raise NotImplementedError

    def num_extra_tokens(self, i: int) -> int:
        """Return the number of extra tokens (class token, global tokens) of stage ``i``."""
        return 0

    def init_layer(self, layer: Union[nn.Conv2d, nn.Linear]) -> None:
        """Initialise a linear layer (std 0.02, no bias) or, as torch does, a convolution."""
        if isinstance(layer, nn.Linear):
            trunc_normal_init(layer, std=0.02, bias=0)
        else:
            layer.reset_parameters()

    def check_input(self, x: Tensor) -> None:
        """Raise TypeError or ValueError unless the input is a batch; a subclass checks more."""
        name = type(self).__name__
        if isinstance(x, (list, tuple)):
            vit = ', or use ViT' if self.input_name == 'image' else ''
            raise TypeError(
                f'{name} takes one tensor {self.input_shape}, got a list of '
                f'{len(x)} {self.input_name}s: call it for each {self.input_name}{vit}'
            )
        if not isinstance(x, Tensor) or not x.is_floating_point():
            kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise TypeError(f'{name} takes a tensor {self.input_shape} of floats, got {kind}')
        count = self.input_shape.count(',') + 1
        if x.dim() != count:
            is_single = x.dim() == count - 1 and self.input_name == 'image'
            add = ': add a batch dimension, x[None]' if is_single else ''
            raise ValueError(f'{name} takes {self.input_shape}, got {tuple(x.shape)}{add}')

    def finish(self) -> None:
        """Check the attentions, set the memory format and freeze."""
        for i in range(self.num_built):
            parts = nn.ModuleList(p for p in self.stage_parts(i) if isinstance(p, nn.Module))
            for module in parts.modules():
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
        frozen = range(min(self.frozen_stages, self.num_built))
        stem = [self.stem_layer()] if self.frozen_stages >= 0 else []
        for part in [*stem, *(part for i in frozen for part in self.stage_parts(i))]:
            part.requires_grad_(False)
            if isinstance(part, nn.Module):
                part.eval()


def _by_stage(cfgs: List[AttnCfg], depths: Sequence[int]) -> List[Any]:
    """Return the attention of each stage, a list where its layers differ."""
    rest = iter(cfgs)
    stages = [[next(rest) for _ in range(depth)] for depth in depths]
    return [stage[0] if all(cfg == stage[0] for cfg in stage) else stage for stage in stages]
