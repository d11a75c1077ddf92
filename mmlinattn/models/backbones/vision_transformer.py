"""ViT and DeiT with any attention."""

import math
from typing import List, Optional, Sequence, Tuple, Union

import torch
import torch.nn.functional as F
from mmengine.logging import print_log
from mmengine.model import BaseModule, ModuleList
from mmengine.registry import MODELS
from torch import Tensor, nn

from ...ops.common.checks import check_sides
from ...ops.common.numerics import may_be_symbolic
from ..layers import AttnCfg, map_to_tokens
from .base import Backbone, Part, drop_path_rates, prepend_tokens
from .patch_embed import PatchConv, check_positions
from .transformer_block import TransformerBlock

# Table 1 of the ViT paper and table 1 of the DeiT paper; stochastic depth as released.
ARCHITECTURES = {
    'deit-t': dict(embed_dims=192, num_heads=3, drop_path_rate=0.1),
    'deit-s': dict(embed_dims=384, num_heads=6, drop_path_rate=0.1),
    'deit-b': dict(embed_dims=768, num_heads=12, drop_path_rate=0.1),
    'b16': dict(embed_dims=768, num_heads=12),
    'b32': dict(embed_dims=768, num_heads=12, patch_size=32),
    'l16': dict(embed_dims=1024, num_heads=16, depth=24),
    'h14': dict(embed_dims=1280, num_heads=16, depth=32, patch_size=14),
}


class ViTPatchEmbed(BaseModule):
    """Patch embedding with an optional class token and learnt positions.

    Args:
        in_channels, embed_dims: channels of the image and of the tokens.
        patch_size: side of a patch.
        grid: rows and columns of the position embedding; None for no positions.
        with_cls_token: prepend a class token, which has a separate position.
    """

    def __init__(
        self,
        in_channels: int,
        embed_dims: int,
        patch_size: int,
        grid: Optional[Tuple[int, int]],
        with_cls_token: bool,
    ) -> None:
        super().__init__()
        self.grid = grid
        self.num_extra_tokens = int(with_cls_token)
        self.proj = PatchConv(in_channels, embed_dims, patch_size)
        self.cls_token = self.pos_embed = None
        if with_cls_token:
            self.cls_token = nn.Parameter(torch.empty(1, 1, embed_dims))
            nn.init.trunc_normal_(self.cls_token, std=0.02)
        if grid is not None:
            count = self.num_extra_tokens + math.prod(grid)
            self.pos_embed = nn.Parameter(torch.empty(1, count, embed_dims))
            nn.init.trunc_normal_(self.pos_embed, std=0.02)
            # The number of positions does not determine their rows and columns.
            self.register_buffer('pos_grid', torch.tensor(grid))
        self._resize_logged = False
        self._register_load_state_dict_pre_hook(self._resize_checkpoint_positions)

    def forward(self, x: Tensor) -> Tuple[Tensor, Tuple[int, int]]:
        """Embed an image (B, in_channels, H, W).

        Returns:
            tokens (B, E + N, C), and the (H, W) of their map.
        """
        x = self.proj(x)
        hw_shape, tokens = tuple(x.shape[-2:]), map_to_tokens(x)
        if self.cls_token is not None:
            tokens = prepend_tokens(self.cls_token, tokens)
        return (tokens if self.pos_embed is None else tokens + self._positions(hw_shape)), hw_shape

    def _positions(self, hw_shape: Tuple[int, int]) -> Tensor:
        # An export with dynamic sizes always resizes; at the same size this changes nothing.
        if not may_be_symbolic(*hw_shape) and hw_shape == self.grid:
            return self.pos_embed
        if not self._resize_logged and not torch.compiler.is_compiling():
            self._resize_logged = True
            print_log(
                f'the position embedding of {self.grid} patches is resized to other map sizes, '
                f'first to {hw_shape}'
            )
        return resize_positions(self.pos_embed, self.grid, hw_shape, self.num_extra_tokens)

    def _resize_checkpoint_positions(self, state_dict: dict, prefix: str, *_) -> None:
        """Resize the position embedding of a checkpoint to the grid of the model."""
        name = f'{prefix}pos_embed'
        if self.pos_embed is None or name not in state_dict:
            return
        loaded = state_dict[name]
        check_positions(name, loaded, self.pos_embed)
        count, same = loaded.shape[1], loaded.shape == self.pos_embed.shape
        saved = state_dict.get(f'{prefix}pos_grid')
        state_dict[f'{prefix}pos_grid'] = torch.tensor(self.grid)
        if saved is None and same:
            return
        if saved is None and self.grid[0] != self.grid[1]:
            raise ValueError(
                f'{name} has {count} positions, but {prefix}pos_grid is missing, so their rows and '
                f'columns are unknown; the model has a grid of {self.grid}'
            )
        side = math.isqrt(count)
        grid = (side, side) if saved is None else tuple(saved.flatten().tolist())
        extra = count - math.prod(grid)
        fits = extra == self.num_extra_tokens or (extra, self.num_extra_tokens) == (1, 0)
        if not fits or len(grid) != 2:
            shape = 'square' if saved is None else f'grid of {grid}'
            raise ValueError(
                f'{name} has {count} positions, which are not a {shape} of patches after '
                f'{self.num_extra_tokens} extra tokens; the model has a grid of {self.grid}'
            )
        if grid != self.grid:
            print_log(f'{name} is resized from {grid} to {self.grid} patches')
        loaded = loaded[:, extra - self.num_extra_tokens :]
        state_dict[name] = resize_positions(loaded, grid, self.grid, self.num_extra_tokens)


def resize_positions(
    positions: Tensor, old: Tuple[int, int], new: Tuple[int, int], num_extra_tokens: int = 0
) -> Tensor:
    """Resize position embeddings (1, E + N, C) to another map size by bicubic interpolation.

    The positions of the E extra tokens (class token) do not change.

    Example:
        >>> resize_positions(torch.zeros(1, 1 + 14 * 14, 8), (14, 14), (20, 30), 1).shape
        torch.Size([1, 601, 8])
    """
    if not may_be_symbolic(*new) and old == new:
        return positions
    extra, patches = positions[:, :num_extra_tokens], positions[:, num_extra_tokens:]
    grid = patches.unflatten(1, old).permute(0, 3, 1, 2).float()
    resized = F.interpolate(grid, size=new, mode='bicubic', align_corners=False)
    return torch.cat([extra, map_to_tokens(resized).to(extra.dtype)], 1)


@MODELS.register_module()
class ViT(Backbone):
    """Vision transformer (Dosovitskiy et al., ICLR 2021; DeiT: Touvron et al., ICML 2021) with any
    attention.

    With softmax attention, the default, outputs equal those of ``VisionTransformer`` of timm and
    MMPretrain; ``convert(..., source='vit')`` or ``'deit'`` renames the weights of both.

    Args:
        arch: ``'deit-t'``, ``'deit-s'``, ``'deit-b'``, ``'b16'``, ``'b32'``, ``'l16'``, ``'h14'``,
            or a dict with ``embed_dims`` and ``num_heads`` and optionally ``depth``,
            ``mlp_ratio``, ``patch_size`` and ``drop_path_rate``.
        attn_cfg: config or name of the attention of all layers, or a list with one per layer. With
            a class token it must support extra tokens.
        img_size: side, or (height, width), of the images that the position embedding is for; a
            multiple of the patch size. Positions are resized to other sizes, which is logged once.
            Loading a checkpoint resizes its positions by their grid, saved as ``embed.pos_grid``.
            Without it the number of positions must match, or both grids must be square.
        in_channels: channels of the image.
        with_cls_token: prepend a class token to the patches.
        cls_token_from: first layer with the class token, 0 by default. From a later layer on, as
            in ConViT, it has no position, and earlier layers may use attentions that do not
            support extra tokens.
        pos_embed: add learnt positions.
        ffn: ``'mlp'``, or ``'mix'`` with a depth-wise convolution in every feed-forward layer,
            which skips the class token.
        out_indices: layers to return, by default the last, which is returned after the final norm.
        out_type: ``'featmap'``, or for heads of MMPretrain ``'avg_featmap'`` (mean of the patches)
            or ``'cls_token'``.
        others: see :class:`Backbone`; ``frozen_stages`` counts layers, 0 freezes patch embedding,
            class token and positions.

    Inputs:
        (B, in_channels, H, W), padded with zeros, right and bottom, to whole patches as in
        MMPretrain.

    Returns:
        tuple of (B, C, ceil(H / p), ceil(W / p)), contiguous, or (B, C).

    Raises:
        ValueError: ``out_type='cls_token'`` with a layer without class token, ``cls_token_from`` is
            not a layer, the patch size does not divide the image size, an attention does not
            support the class token, loaded positions cannot be resized; errors of
            :class:`Backbone`.
        KeyError: the attention is unknown.

    Example:
        >>> ripple = ['RippleAttention'] * 9 + ['LinearAttention'] * 3
        >>> model = ViT('deit-t', ripple, with_cls_token=False, out_type='avg_featmap').eval()
        >>> [tuple(out.shape) for out in model(torch.randn(1, 3, 224, 224))]
        [(1, 192)]
    """

    architectures = ARCHITECTURES
    arch_required = ('embed_dims', 'num_heads')
    arch_defaults = dict(depth=12, mlp_ratio=4, patch_size=16, drop_path_rate=0.0)
    stage_name = 'layer'
    has_cls_token = True

    def __init__(
        self,
        arch: Union[str, dict] = 'deit-t',
        attn_cfg: Union[AttnCfg, Sequence[AttnCfg]] = 'SoftmaxAttention',
        img_size: Union[int, Sequence[int]] = 224,
        in_channels: int = 3,
        with_cls_token: bool = True,
        cls_token_from: int = 0,
        pos_embed: bool = True,
        ffn: str = 'mlp',
        out_indices: Optional[Sequence[int]] = None,
        **kwargs,
    ) -> None:
        if out_indices is None:
            out_indices = (self._architecture(arch)['depth'] - 1,)
        super().__init__(arch, attn_cfg, out_indices, **kwargs)
        if self.out_type == 'cls_token' and not with_cls_token:
            raise ValueError("out_type='cls_token' needs with_cls_token=True")
        dims, heads, depth, mlp_ratio, patch_size = (
            self.arch[name]
            for name in ('embed_dims', 'num_heads', 'depth', 'mlp_ratio', 'patch_size')
        )
        layers = range(depth if with_cls_token else 1)
        if type(cls_token_from) is not int or cls_token_from not in layers:
            raise ValueError(
                f'cls_token_from must be a layer in 0..{depth - 1}, or 0 without a class token, '
                f'got {cls_token_from!r}'
            )
        if self.out_type == 'cls_token' and min(self.out_indices) < cls_token_from:
            raise ValueError(
                f"out_type='cls_token' needs out_indices of at least {cls_token_from=}, got "
                f'{self.out_indices}'
            )
        height, width = check_sides(img_size, 'img_size')
        if height % patch_size or width % patch_size:
            raise ValueError(
                f'img_size must be a multiple of patch_size={patch_size}, got {img_size}'
            )
        grid = (height // patch_size, width // patch_size) if pos_embed else None
        with_first = with_cls_token and not cls_token_from
        self.embed = ViTPatchEmbed(in_channels, dims, patch_size, grid, with_first)
        self.cls_token_from, self.cls_token = cls_token_from, None
        if 0 < cls_token_from < self.num_built:
            self.cls_token = nn.Parameter(torch.empty(1, 1, dims))
            nn.init.trunc_normal_(self.cls_token, std=0.02)
        self.layers = ModuleList(
            TransformerBlock(
                dims, heads, mlp_ratio, self.attn_cfgs[i], *self.drop_paths[i], ffn=ffn
            )
            for i in range(self.num_built)
        )
        self.norm = nn.LayerNorm(dims, eps=1e-6) if self.num_built == depth else None
        self.finish()

    def count_stages(self) -> int:
        return self.arch['depth']

    def stochastic_depth(self, rate: float) -> List[List[float]]:
        return drop_path_rates(rate, (1,) * self.arch['depth'])

    def stem_layer(self) -> nn.Module:
        return self.embed

    def stage_parts(self, i: int) -> List[Part]:
        last = self.norm is not None and i == self.num_built - 1
        token = [self.cls_token] if self.inserts_cls_token(i) else []
        return [*token, self.layers[i], *([self.norm] if last else [])]

    def inserts_cls_token(self, i: int) -> bool:
        """Return True if the class token is prepended before layer ``i`` > 0."""
        return self.cls_token is not None and i == self.cls_token_from

    def num_extra_tokens(self, i: int) -> int:
        late = self.cls_token is not None and i >= self.cls_token_from
        return self.embed.num_extra_tokens + int(late)

    def forward(self, x: Tensor) -> Tuple[Tensor, ...]:
        x = x.contiguous(memory_format=torch.channels_last)
        tokens, hw_shape = self.embed(x)
        outs = []
        for i, layer in enumerate(self.layers):
            if self.inserts_cls_token(i):
                tokens = prepend_tokens(self.cls_token, tokens)
            num_extra = self.num_extra_tokens(i)
            tokens = self.run_block(layer, tokens, hw_shape, num_extra)
            if i in self.out_indices:
                last = self.norm is not None and i == self.num_built - 1
                out = self.norm(tokens) if last else tokens
                outs.append(self.format_output(out, hw_shape, num_extra))
        return tuple(outs)
