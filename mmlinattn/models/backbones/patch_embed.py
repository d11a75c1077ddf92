"""Patch embedding, learnt tokens and checks of position embeddings."""

import warnings
from typing import Any, Optional

import torch
import torch.nn.functional as F
from mmcv.cnn import ConvModule
from mmengine.logging import print_log
from mmengine.model import BaseModule
from torch import Tensor, nn

from ...ops.common.numerics import accumulation_dtype, is_static, may_be_symbolic
from ..layers import map_to_tokens, tokens_to_map


def pad_to_multiple(x: Tensor, side: int) -> Tensor:
    """Pad a map (B, C, H, W) with zeros, right and bottom, to multiples of ``side``."""
    rows, columns = ((side - size % side) % side for size in x.shape[-2:])
    # An export with dynamic sizes must not branch on them.
    if is_static(rows, columns) and not (rows or columns):
        return x
    return F.pad(x, (0, columns, 0, rows))


class PatchConv(nn.Conv2d):
    """Convolution of non-overlapping patches; the map is padded with zeros to whole patches."""

    def __init__(
        self, in_channels: int, out_channels: int, patch_size: int, bias: bool = True
    ) -> None:
        super().__init__(in_channels, out_channels, patch_size, stride=patch_size, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Embed (B, C, H, W) as (B, out_channels, H / p, W / p), rounded up."""
        return super().forward(pad_to_multiple(x, self.kernel_size[0]))


def biased_conv(*args: Any, **kwargs: Any) -> ConvModule:
    """Return a convolution with the bias of released weights, which its batch norm cancels."""
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', 'Unnecessary conv bias')
        return ConvModule(*args, bias=True, **kwargs)


class PatchEmbed(BaseModule):
    """Convolution of patches, then LayerNorm over the channels."""

    def __init__(self, conv: nn.Conv2d, eps: float = 1e-5) -> None:
        super().__init__()
        self.proj = conv
        self.norm = nn.LayerNorm(conv.out_channels, eps=eps)

    def forward(self, x: Tensor) -> Tensor:
        """Embed (B, C, H, W) as a map of the size that the convolution gives."""
        x = self.proj(x)
        return tokens_to_map(self.norm(map_to_tokens(x)), x.shape[-2:])


def new_tokens(embed_dims: int, count: Optional[int]) -> Optional[nn.Parameter]:
    """Return learnt tokens (1, count, C), normal with std 0.02 at first; None for no tokens."""
    if not count:
        return None
    return nn.Parameter(nn.init.trunc_normal_(torch.empty(1, count, embed_dims), std=0.02))


def prepend_tokens(extra: Tensor, tokens: Tensor) -> Tensor:
    """Return extra tokens (1, E, C) before tokens (B, N, C), in the dtype of the latter."""
    return torch.cat([extra.expand(tokens.shape[0], -1, -1).to(tokens.dtype), tokens], 1)


def resize_embedding(embed: Tensor, size: int) -> Tensor:
    """Resize an embedding (1, n, C) of positions along an axis to (1, size, C), linearly."""
    if not may_be_symbolic(size) and embed.shape[1] == size:
        return embed
    wide = embed.to(accumulation_dtype(embed.dtype))
    return F.interpolate(wide.mT, size=size, mode='linear').mT.to(embed.dtype)


def resize_loaded_embedding(
    state_dict: dict, name: str, own: Optional[Tensor], unit: str = ''
) -> None:
    """Resize an embedding of a checkpoint along an axis to the size of the model, and log it."""
    loaded = state_dict.get(name)
    if loaded is None or own is None or loaded.shape == own.shape:
        return
    check_positions(name, loaded, own)
    print_log(f'{name} is resized from {loaded.shape[1]} to {own.shape[1]}{unit}')
    state_dict[name] = resize_embedding(loaded, own.shape[1])


def check_positions(name: str, loaded: Tensor, expected: Tensor) -> None:
    """Raise ValueError unless loaded positions (1, N, C) can be resized to those of the model."""
    if loaded.dim() != 3 or loaded.shape[-1] != expected.shape[-1]:
        raise ValueError(
            f'{name} has shape {tuple(loaded.shape)}, the model needs {tuple(expected.shape)}: '
            'only the number of positions may differ'
        )
