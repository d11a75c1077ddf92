"""Patch embedding of ViT: class token, registers, and learnt positions of any image size."""

import math
from typing import Optional, Tuple

import torch
import torch.nn.functional as F
from mmengine.logging import print_log
from mmengine.model import BaseModule
from torch import Tensor, nn

from ...ops.common.numerics import accumulation_dtype, may_be_symbolic
from ...utils import check_integer
from ..layers import map_to_tokens
from .patch_embed import PatchConv, check_positions, new_tokens, prepend_tokens

RESIZES = ('bicubic', 'antialias', 'offset')


class ViTPatchEmbed(BaseModule):
    """Patch embedding with optional class token, registers and learnt positions.

    Args:
        grid: rows and columns of the position embedding; None for no positions.
        with_cls_token: prepend a class token, which has a separate position.
        norm_eps: eps of a LayerNorm of all tokens, as in CLIP; None for no norm.
        in_channels, embed_dims, patch_size, num_registers, pos_resize, bias: as in :class:`.ViT`.

    Raises:
        ValueError: ``num_registers`` is negative or no integer, or ``pos_resize`` is unknown; on
            loading, positions cannot be resized.
    """

    def __init__(
        self,
        in_channels: int,
        embed_dims: int,
        patch_size: int,
        grid: Optional[Tuple[int, int]],
        with_cls_token: bool,
        num_registers: int = 0,
        pos_resize: str = 'bicubic',
        bias: bool = True,
        norm_eps: Optional[float] = None,
    ) -> None:
        super().__init__()
        num_registers = check_integer('num_registers', num_registers, least=0)
        if pos_resize not in RESIZES:
            raise ValueError(f'pos_resize must be one of {RESIZES}, got {pos_resize!r}')
        self.grid = grid
        self.pos_resize = pos_resize
        self.num_extra_positions = int(with_cls_token)
        self.num_extra_tokens = self.num_extra_positions + num_registers
        self.proj = PatchConv(in_channels, embed_dims, patch_size, bias)
        self.cls_token = new_tokens(embed_dims, int(with_cls_token))
        self.registers = new_tokens(embed_dims, num_registers)
        self.pos_embed = None
        if grid is not None:
            self.pos_embed = new_tokens(embed_dims, self.num_extra_positions + math.prod(grid))
            # The number of positions does not determine their rows and columns.
            self.register_buffer('pos_grid', torch.tensor(grid))
        self.norm = None if norm_eps is None else nn.LayerNorm(embed_dims, eps=norm_eps)
        self._resize_logged = False
        self._register_load_state_dict_pre_hook(self._resize_checkpoint_positions)

    def forward(self, x: Tensor) -> Tuple[Tensor, Tuple[int, int]]:
        """Embed an image (B, in_channels, H, W).

        Returns:
            tokens (B, E + N, C): class token, registers, patches; and the (H, W) of their map.
        """
        x = self.proj(x)
        hw_shape, tokens = tuple(x.shape[-2:]), map_to_tokens(x)
        cls_token = self.cls_token
        if self.pos_embed is not None:
            positions = self._positions(hw_shape)
            tokens = tokens + positions[:, self.num_extra_positions :]
            cls_token = None if cls_token is None else cls_token + positions[:, :1]
        for extra in (self.registers, cls_token):
            tokens = tokens if extra is None else prepend_tokens(extra, tokens)
        return (tokens if self.norm is None else self.norm(tokens)), hw_shape

    def _positions(self, hw_shape: Tuple[int, int]) -> Tensor:
        assert self.pos_embed is not None and self.grid is not None
        # An export with dynamic sizes always resizes; at the same size this changes nothing.
        if not may_be_symbolic(*hw_shape) and hw_shape == self.grid:
            return self.pos_embed
        # Printing the sizes of a trace would add operations to it.
        compiled = torch.compiler.is_compiling() or torch.jit.is_tracing()
        if not self._resize_logged and not compiled:
            self._resize_logged = True
            print_log(
                f'the position embedding of {self.grid} patches is resized to other map sizes, '
                f'first to {hw_shape}',
                'current',
            )
        options = (self.num_extra_positions, self.pos_resize)
        return resize_positions(self.pos_embed, self.grid, hw_shape, *options)

    def _resize_checkpoint_positions(self, state_dict: dict, prefix: str, *_) -> None:
        """Resize the position embedding of a checkpoint to the grid of the model."""
        name = f'{prefix}pos_embed'
        if self.pos_embed is None or self.grid is None or name not in state_dict:
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
        own_extra = self.num_extra_positions
        fits = extra == own_extra or (extra, own_extra) == (1, 0)
        if not fits or len(grid) != 2:
            shape = 'square' if saved is None else f'grid of {grid}'
            raise ValueError(
                f'{name} has {count} positions, which are not a {shape} of patches after '
                f'{own_extra} extra tokens; the model has a grid of {self.grid}'
            )
        if grid != self.grid:
            print_log(f'{name} is resized from {grid} to {self.grid} patches')
        loaded, options = loaded[:, extra - own_extra :], (own_extra, self.pos_resize)
        state_dict[name] = resize_positions(loaded, grid, self.grid, *options)


def resize_positions(
    positions: Tensor,
    old: Tuple[int, int],
    new: Tuple[int, int],
    num_extra_positions: int = 0,
    method: str = 'bicubic',
) -> Tensor:
    """Resize position embeddings (1, E + N, C) to another map size by bicubic interpolation.

    Args:
        positions: of E tokens without a place (class token), which do not change, and of a map.
        old, new: (H, W) of the map.
        num_extra_positions: E.
        method: ``'bicubic'`` as transformers and MMPretrain; ``'antialias'``, with a low-pass
            filter where a side shrinks, as timm and the models with registers of DINOv2; or
            ``'offset'`` as the other models of DINOv2, whose scale is ``(new + 0.1) / old``.

    Raises:
        ValueError: an export with dynamic sizes and ``'offset'``, whose scale is a constant.
    """
    if not may_be_symbolic(*new) and old == new:
        return positions
    extra, patches = positions[:, :num_extra_positions], positions[:, num_extra_positions:]
    grid = patches.to(accumulation_dtype(patches.dtype)).unflatten(1, old).permute(0, 3, 1, 2)
    if method == 'offset':
        if may_be_symbolic(*new):
            raise ValueError(
                "pos_resize='offset' cannot be exported with dynamic height and width, since its "
                "scale is a constant. Export it at a fixed size, or set pos_resize='bicubic', "
                'whose places differ by up to a tenth of a patch'
            )
        # torch.jit.trace shows sizes as tensors; a scale must be numbers.
        sides = (int(side) if isinstance(side, Tensor) else side for side in new)
        scale = tuple((side + 0.1) / before for side, before in zip(sides, old))
        resized = F.interpolate(grid, scale_factor=scale, mode='bicubic')
    else:
        resized = F.interpolate(grid, size=new, mode='bicubic', antialias=method == 'antialias')
    return torch.cat([extra, map_to_tokens(resized).to(extra.dtype)], 1)
