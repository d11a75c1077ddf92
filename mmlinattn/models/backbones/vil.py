"""ViL, with any attention."""

from typing import Optional, Sequence, Tuple, Union

import torch
import torch.nn.functional as F
from mmengine.logging import print_log
from mmengine.model import BaseModule, ModuleList
from mmengine.registry import MODELS
from torch import Tensor, nn

from ...ops.common.checks import check_sides
from ...ops.common.numerics import may_be_symbolic
from ..layers import AttnCfg, map_to_tokens, tokens_to_map
from .base import HierarchicalBackbone
from .patch_embed import PatchConv, check_positions
from .transformer_block import TransformerBlock

# Table 2 of the paper; "medium" and "base" are its deep variants.
ARCHITECTURES = {
    'tiny': dict(embed_dims=(48, 96, 192, 384), depths=(1, 1, 9, 1), num_heads=(1, 3, 3, 6)),
    'small': dict(embed_dims=(96, 192, 384, 768), depths=(1, 2, 8, 1)),
    'medium': dict(embed_dims=(96, 192, 384, 768), depths=(1, 4, 16, 1)),
    'medium-wide': dict(
        embed_dims=(192, 384, 512, 768), depths=(1, 2, 8, 1), num_heads=(3, 6, 8, 12)
    ),
    'base': dict(embed_dims=(96, 192, 384, 768), depths=(1, 8, 24, 1)),
    'base-wide': dict(
        embed_dims=(192, 384, 768, 1024), depths=(1, 2, 8, 1), num_heads=(3, 6, 12, 16)
    ),
}
# The released attentions by kind of position.
RELEASED = dict(
    absolute=('VisionLongformerAttention',) * 2 + ('SoftmaxAttention',) * 2,
    relative=('VisionLongformerAttention',) * 2 + ('RelativeSoftmaxAttention',) * 2,
)
STRIDES = (4, 2, 2, 2)


class PlacedPatches(BaseModule):
    """Patches, each a linear layer and LayerNorm, and learnt positions, if any: half of the
    channels have those of rows, half those of columns. Extra tokens have positions of their own.

    Args:
        in_channels, embed_dims: channels.
        patch_size: side of a patch; the map is padded with zeros, right and below, to whole ones.
        grid: rows and columns that there are positions for; others are interpolated. None for no
            positions.
        num_extra_tokens: extra tokens of the stage.
    """

    def __init__(
        self,
        in_channels: int,
        embed_dims: int,
        patch_size: int,
        grid: Optional[Tuple[int, int]],
        num_extra_tokens: int,
    ) -> None:
        super().__init__()
        self.proj = PatchConv(in_channels, embed_dims, patch_size)
        self.norm = nn.LayerNorm(embed_dims, eps=1e-6)
        of_extra = (1, num_extra_tokens, embed_dims)
        of_axes = [_learnt((1, size, embed_dims // 2)) for size in grid or ()]
        self.row_embed, self.column_embed = of_axes or (None, None)
        self.extra_tokens = _learnt(of_extra) if num_extra_tokens else None
        self.extra_embed = _learnt(of_extra) if num_extra_tokens and grid else None
        self._register_load_state_dict_pre_hook(self._fit_positions)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to (B, embed_dims, H / p, W / p), rounded up."""
        x = self.proj(x)
        hw_shape = x.shape[-2:]
        x = tokens_to_map(self.norm(map_to_tokens(x)), hw_shape)
        if self.row_embed is None:
            return x
        embeds = zip((self.row_embed, self.column_embed), hw_shape)
        of_rows, of_columns = (_resized(e, size).transpose(1, 2) for e, size in embeds)
        places = [of_rows[..., None].expand(-1, -1, -1, hw_shape[1])]
        places.append(of_columns[:, :, None].expand(-1, -1, hw_shape[0], -1))
        return x + torch.cat(places, 1)

    def placed_extra_tokens(self) -> Optional[Tensor]:
        """(1, E, C), or None."""
        if self.extra_tokens is None or self.extra_embed is None:
            return self.extra_tokens
        return self.extra_tokens + self.extra_embed

    def _fit_positions(self, state_dict: dict, prefix: str, *_) -> None:
        """Positions of a checkpoint as this model needs them."""
        for name in ('row_embed', 'column_embed'):
            theirs, ours = state_dict.get(prefix + name), getattr(self, name)
            if theirs is None or ours is None or theirs.shape == ours.shape:
                continue
            check_positions(prefix + name, theirs, ours)
            print_log(f'{prefix}{name} is resized from {theirs.shape[1]} to {ours.shape[1]}')
            state_dict[prefix + name] = _resized(theirs, ours.shape[1])


def _learnt(shape: Sequence[int]) -> nn.Parameter:
    return nn.Parameter(nn.init.trunc_normal_(torch.empty(shape), std=0.02))


def _resized(embed: Tensor, size: int) -> Tensor:
    """Positions (1, n, C) for ``size`` places, linearly interpolated."""
    if not may_be_symbolic(size) and embed.shape[1] == size:
        return embed
    return (
        F.interpolate(embed.float().transpose(1, 2), size=size, mode='linear')
        .transpose(1, 2)
        .to(embed.dtype)
    )


@MODELS.register_module()
class ViL(HierarchicalBackbone):
    """Multi-scale vision longformer (Zhang et al., ICCV 2021), with any attention of this package.

    Its own are ``VisionLongformerAttention`` in the first two stages and softmax attention in the
    last two; ``convert(..., source='vil')`` renames released weights.

    Args:
        arch: ``'tiny'``, ``'small'``, ``'medium'``, ``'medium-wide'``, ``'base'``,
            ``'base-wide'``, or a dict with ``embed_dims`` (even) and ``depths`` and optionally
            ``num_heads``, ``mlp_ratios``, ``global_tokens`` (extra tokens of each stage, which its
            attention must take unless 0) and ``drop_path_rate``.
        attn_cfg: config or name of the attention of all stages, or a list of four; by default
            the released ones.
        position: ``'absolute'``, learnt positions added to patches and extra tokens, or
            ``'relative'``: no more than a bias for each relative position in those attentions that
            have one (``VisionLongformerAttention``, ``RelativeSoftmaxAttention``).
        window_size: side of the windows, or a list with that of each stage.
        img_size: side, or (height, width), of the images that the positions are for. For others
            absolute ones are interpolated, linearly, and relative ones reach no further.
        in_channels: channels of the image.
        out_norm: LayerNorm over the channels of every output; that of the last stage is released.
        out_type: see :class:`Backbone`; the released classifiers take ``'avg_featmap'``.
        others: see :class:`HierarchicalBackbone`; ``frozen_stages=0`` freezes the first patch
            embedding.

    Inputs:
        (B, in_channels, H, W) of any size.

    Returns:
        tuple of (B, C_i, ceil(H / s_i), ceil(W / s_i)), strides s = 4, 8, 16, 32, contiguous.

    Raises:
        ValueError, KeyError: see :class:`HierarchicalBackbone`; odd widths; windows or images whose
            sides are no positive integers.

    Example:
        >>> model = ViL('tiny', ['RWGKP', 'RWGKP', 'SoftmaxAttention', 'SoftmaxAttention']).eval()
        >>> [tuple(f.shape) for f in model(torch.randn(1, 3, 64, 96))]
        [(1, 48, 16, 24), (1, 96, 8, 12), (1, 192, 4, 6), (1, 384, 2, 3)]
    """

    architectures = ARCHITECTURES
    arch_defaults = dict(
        num_heads=(3, 3, 6, 12), mlp_ratios=4, global_tokens=(1, 1, 1, 0), drop_path_rate=0.1
    )
    arch_may_be_zero = ('global_tokens',)

    def __init__(
        self,
        arch: Union[str, dict] = 'tiny',
        attn_cfg: Optional[Union[AttnCfg, Sequence[AttnCfg]]] = None,
        position: str = 'absolute',
        window_size: Union[int, Sequence[int]] = 7,
        img_size: Union[int, Sequence[int]] = 224,
        in_channels: int = 3,
        out_norm: bool = True,
        **kwargs,
    ) -> None:
        if position not in RELEASED:
            raise ValueError(f'position must be one of {tuple(RELEASED)}, got {position!r}')
        super().__init__(arch, RELEASED[position] if attn_cfg is None else attn_cfg, **kwargs)
        sides = [window_size] * self.num_stages if isinstance(window_size, int) else window_size
        fits = isinstance(sides, (list, tuple)) and len(sides) == self.num_stages
        if not fits or any(type(side) is not int or side < 1 for side in sides):
            raise ValueError(
                'window_size must be one positive integer, or one a stage, also of stages that '
                f'have no windows; got {window_size!r}'
            )
        dims = self.arch['embed_dims'][: self.num_built]
        if any(dim % 2 for dim in dims):
            raise ValueError(f"arch['embed_dims'] must be even, got {self.arch['embed_dims']}")
        grid = check_sides(img_size, 'img_size')
        self.patch_embeds, self.stages = ModuleList(), ModuleList()
        for i, dim in enumerate(dims):
            grid = tuple(-(-size // STRIDES[i]) for size in grid)
            extra = self.arch['global_tokens'][i]
            offers = dict(window_size=sides[i])
            if position == 'relative':
                offers.update(relative_bias=True, map_size=grid, num_extra_tokens=extra)
            placed = grid if position == 'absolute' else None
            self.patch_embeds.append(PlacedPatches(in_channels, dim, STRIDES[i], placed, extra))
            self.build_stage(i, TransformerBlock, **offers)
            in_channels = dim
        self.finish(norm_eps=1e-6 if out_norm else None)

    def entry(self, i: int) -> nn.Module:
        return self.patch_embeds[i]

    def extra_tokens(self, i: int) -> Optional[Tensor]:
        return self.patch_embeds[i].placed_extra_tokens()
