"""Base class of backbones with stages on successively smaller maps."""

from numbers import Real
from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

import torch
from mmengine.model import ModuleList
from torch import Tensor, nn

from ...utils import check_integer, check_number
from ..layers import AttnCfgs, map_to_tokens, tokens_to_map
from ..layers.residual import drop_path_rates
from .base import Backbone, Part
from .patch_embed import prepend_tokens

# Name of the tensor by which a converted file says what attention it was trained with, per stage.
TRAINED_ATTENTION = 'trained_attention'
# Keys of an architecture whose values are integers.
INTEGERS = ('embed_dims', 'depths', 'num_heads', 'sr_ratios', 'global_tokens')


class HierarchicalBackbone(Backbone):
    """Base class of backbones with stages on successively smaller maps.

    A subclass sets the class attributes. ``arch_required`` and ``arch_defaults`` together contain
    at least ``embed_dims``, ``depths``, ``num_heads``, ``mlp_ratios`` and ``drop_path_rate``. Its
    constructor sets ``self.stages`` to MMEngine's ModuleList, calls :meth:`build_stage` for each
    stage and :meth:`finish` last. It sets ``self.patch_embeds``, or overrides
    :meth:`downsample_layer`, and overrides other methods if needed. ``docs/design.md`` has a
    complete example.

    Args:
        arch: see :class:`Backbone`. Values are lists with one number per stage, or one number for
            all stages; ``drop_path_rate`` is one number.
        out_indices: stages to return, all by default; stages after the last are not built.
        attn_cfg, kwargs: options of :class:`Backbone`.

    Attributes:
        num_stages: number of stages, 4 by default.
        arch_may_be_zero: keys of an architecture whose values can be 0.

    Inputs:
        (B, in_channels, H, W) of any size, unless a subclass says otherwise.

    Returns:
        tuple of maps (B, C_i, ceil(H / s_i), ceil(W / s_i)), strides s = 4, 8, 16, 32, contiguous,
        or (B, C_i) with another ``out_type``.
    """

    stages: ModuleList
    patch_embeds: ModuleList
    num_stages = 4
    arch_may_be_zero: Tuple[str, ...] = ()

    def __init__(
        self,
        arch: Union[str, dict],
        attn_cfg: AttnCfgs,
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
            values = (value,) * count if isinstance(value, Real) else value
            if not isinstance(values, (list, tuple)) or len(values) != count:
                raise ValueError(f'{place} must have {count} values, got {value!r}')
            may_be_zero = name in self.arch_may_be_zero
            if name in INTEGERS:
                arch[name] = tuple(check_integer(place, of, int(not may_be_zero)) for of in values)
            else:
                arch[name] = tuple(check_number(place, of, above=not may_be_zero) for of in values)
        return arch

    def stochastic_depth(self, rate: float) -> List[List[float]]:
        return drop_path_rates(rate, self.arch['depths'])

    def build_stage(
        self,
        i: int,
        block: Callable[..., nn.Module],
        odd_block_options: Optional[dict] = None,
        **options,
    ) -> None:
        """Append stage ``i`` with the depth of the architecture to ``self.stages``.

        Args:
            i: index of the stage.
            block: class or function, called as ``block(embed_dims, num_heads, mlp_ratio, attn_cfg,
                drop_path=..., **options)``.
            odd_block_options: further options of the blocks 1, 3, ...
            options: options of all blocks.
        """
        sizes = [self.arch[name][i] for name in ('embed_dims', 'num_heads', 'mlp_ratios')]
        first, blocks = sum(map(len, self.drop_paths[:i])), ModuleList()
        for j, rate in enumerate(self.drop_paths[i]):
            more = odd_block_options if j % 2 and odd_block_options else {}
            attn_cfg = self.layer_attn_cfgs[first + j]
            blocks.append(block(*sizes, attn_cfg, drop_path=rate, **options, **more))
        self.stages.append(blocks)

    def downsample_layer(self, i: int) -> nn.Module:
        """Return the module before stage ``i``; for stage 0 the stem, which takes the image.

        It is ``self.patch_embeds[i]`` unless a subclass has others.
        """
        return self.patch_embeds[i]

    def stem_layer(self) -> nn.Module:
        return self.downsample_layer(0)

    def layer_groups(self) -> List[List[Part]]:
        groups: List[List[Part]] = [[self.stem_layer()]]
        for i, blocks in enumerate(self.stages):
            before: List[Part] = [self.downsample_layer(i)] if i else []
            token = self.extra_tokens(i)  # ViL has its tokens in the downsampling layer
            before += [token] if i and isinstance(token, nn.Parameter) else []
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

    def stage_parts(self, i: int) -> List[Part]:
        norm = [self.out_norms[str(i)]] if str(i) in self.out_norms else []
        return [self.downsample_layer(i), self.stages[i], *norm]

    def finish(self, norm_eps: Optional[float] = None) -> None:
        """Add a LayerNorm with ``norm_eps`` to every output, and finish as :class:`Backbone`."""
        normed, dims = self.out_indices if norm_eps else (), self.arch['embed_dims']
        norms = {str(i): nn.LayerNorm(dims[i], norm_eps or 0.0) for i in normed}
        self.out_norms = nn.ModuleDict(norms)
        self._register_load_state_dict_pre_hook(self._check_trained_attention)
        super().finish()

    def _check_trained_attention(self, state_dict: dict, prefix: str, *_) -> None:
        """Raise ValueError if the file records other attentions than this model, or is damaged."""
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
                out = self.out_norms[str(i)](tokens) if self.out_norms else tokens
                outs.append(self.format_output(out, hw_shape, num_extra))
            if i + 1 < len(self.stages):
                x = tokens_to_map(tokens[:, num_extra:] if num_extra else tokens, hw_shape)
        return tuple(outs)
