"""ViL (Zhang et al., ICCV 2021) with any attention."""

from typing import Optional, Sequence, Tuple, Union

import torch
from mmengine.model import ModuleList
from mmengine.registry import MODELS
from torch import Tensor

from ...ops.common.checks import check_sides
from ..layers import AttnCfgs
from .hierarchical import HierarchicalBackbone
from .patch_embed import (
    PatchConv,
    PatchEmbed,
    new_tokens,
    resize_embedding,
    resize_loaded_embedding,
)
from .transformer_block import TransformerBlock

# Table 2 of the paper; "medium" and "base" are the deep variants.
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
# Attentions of the released models by kind of position.
RELEASED_ATTENTIONS = dict(
    absolute=('VisionLongformerAttention',) * 2 + ('SoftmaxAttention',) * 2,
    relative=('VisionLongformerAttention',) * 2 + ('BiasedSoftmaxAttention',) * 2,
)
STRIDES = (4, 2, 2, 2)


class ViLPatchEmbed(PatchEmbed):
    """Patch embedding with LayerNorm, learnt positions of a grid and extra (global) tokens.

    Half of the channels of a position embed its row, half its column. Extra tokens, which have no
    position on the map, have a separate embedding. Without a grid there are no positions.
    """

    def __init__(
        self,
        in_channels: int,
        embed_dims: int,
        patch_size: int,
        grid: Optional[Tuple[int, int]],
        num_extra_tokens: int,
    ) -> None:
        super().__init__(PatchConv(in_channels, embed_dims, patch_size), eps=1e-6)
        self.row_embed, self.column_embed = (
            new_tokens(embed_dims // 2, size) for size in grid or (None, None)
        )
        self.extra_tokens = new_tokens(embed_dims, num_extra_tokens)
        self.extra_embed = new_tokens(embed_dims, num_extra_tokens) if grid else None
        self._register_load_state_dict_pre_hook(self._resize_checkpoint_positions)

    def forward(self, x: Tensor) -> Tensor:
        """Embed (B, C, H, W) as (B, embed_dims, H / p, W / p), rounded up."""
        x = super().forward(x)
        hw_shape = x.shape[-2:]
        if self.row_embed is None or self.column_embed is None:
            return x
        embeds = zip((self.row_embed, self.column_embed), hw_shape)
        rows, columns = (resize_embedding(e, size).transpose(1, 2) for e, size in embeds)
        positions = [rows[..., None].expand(-1, -1, -1, hw_shape[1])]
        positions.append(columns[:, :, None].expand(-1, -1, hw_shape[0], -1))
        return x + torch.cat(positions, 1)

    def embedded_extra_tokens(self) -> Optional[Tensor]:
        """Return the extra tokens plus their embedding, (1, E, C), or None."""
        if self.extra_tokens is None or self.extra_embed is None:
            return self.extra_tokens
        return self.extra_tokens + self.extra_embed

    def _resize_checkpoint_positions(self, state_dict: dict, prefix: str, *_) -> None:
        """Resize the position embeddings of a checkpoint to the grid of the model."""
        for name in ('row_embed', 'column_embed'):
            resize_loaded_embedding(state_dict, prefix + name, getattr(self, name))


@MODELS.register_module()
class ViL(HierarchicalBackbone):
    """Multi-scale vision longformer (Zhang et al., ICCV 2021) with any attention.

    The default is that of the release: ``VisionLongformerAttention`` in the first two stages and
    softmax attention in the last two. ``convert(..., source='vil')`` renames released weights.

    Args:
        arch: ``'tiny'``, ``'small'``, ``'medium'``, ``'medium-wide'``, ``'base'``,
            ``'base-wide'``, or a dict with ``embed_dims`` (even) and ``depths`` and optionally
            ``num_heads``, ``mlp_ratios``, ``drop_path_rate`` and ``global_tokens``, the number of
            extra tokens per stage, which the attention must support unless 0.
        attn_cfg: see :class:`Backbone`; by default the released attentions.
        position: ``'absolute'`` adds learnt positions to patches and extra tokens. ``'relative'``
            adds a relative position bias in the attentions that have one
            (``VisionLongformerAttention``, ``BiasedSoftmaxAttention``).
        window_size: side of the windows, or a list with one per stage.
        img_size: side, or (height, width), of the images that the positions are for. For other
            sizes absolute positions are interpolated linearly and relative distances are clamped.
        in_channels: channels of the image.
        out_norm: LayerNorm over the channels of every output; the release has that of the last
            stage.
        out_type: see :class:`Backbone`; the released classifiers use ``'avg_featmap'``.
        kwargs: options of :class:`HierarchicalBackbone`.

    Raises:
        ValueError: ``embed_dims`` is odd, ``window_size`` or ``img_size`` is not positive.

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
        attn_cfg: Optional[AttnCfgs] = None,
        position: str = 'absolute',
        window_size: Union[int, Sequence[int]] = 7,
        img_size: Union[int, Sequence[int]] = 224,
        in_channels: int = 3,
        out_norm: bool = True,
        **kwargs,
    ) -> None:
        if position not in RELEASED_ATTENTIONS:
            known = tuple(RELEASED_ATTENTIONS)
            raise ValueError(f'position must be one of {known}, got {position!r}')
        attn_cfg = RELEASED_ATTENTIONS[position] if attn_cfg is None else attn_cfg
        super().__init__(arch, attn_cfg, **kwargs)
        sides = [window_size] * self.num_stages if isinstance(window_size, int) else window_size
        fits = isinstance(sides, (list, tuple)) and len(sides) == self.num_stages
        if not fits or any(type(side) is not int or side < 1 for side in sides):
            raise ValueError(
                'window_size must be a positive integer, or a list with one per stage, also for '
                f'stages without windows; got {window_size!r}'
            )
        dims = self.arch['embed_dims'][: self.num_built]
        if any(dim % 2 for dim in dims):
            raise ValueError(f"arch['embed_dims'] must be even, got {self.arch['embed_dims']}")
        grid = check_sides(img_size, 'img_size')
        self.patch_embeds, self.stages = ModuleList(), ModuleList()
        for i, dim in enumerate(dims):
            grid = -(-grid[0] // STRIDES[i]), -(-grid[1] // STRIDES[i])
            extra = self.arch['global_tokens'][i]
            options: dict = dict(window_size=sides[i])
            if position == 'relative':
                options.update(relative_bias=True, map_size=grid, num_extra_tokens=extra)
            embed_grid = grid if position == 'absolute' else None
            embed = ViLPatchEmbed(in_channels, dim, STRIDES[i], embed_grid, extra)
            self.patch_embeds.append(embed)
            self.build_stage(i, TransformerBlock, **options)
            in_channels = dim
        self.finish(norm_eps=1e-6 if out_norm else None)

    def extra_tokens(self, i: int) -> Optional[Tensor]:
        return self.patch_embeds[i].embedded_extra_tokens()
