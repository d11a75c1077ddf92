"""Core attention of VECA: a few cores read all tokens, and the tokens read the cores."""

import math
from functools import partial
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor, nn

from ...ops.common.checks import check_rate
from ...ops.common.numerics import (
    Mask,
    accumulation_dtype,
    constant,
    is_tracing,
    zero_padding,
)
from ...ops.common.packed import PackedShapes
from ...ops.common.rotary import turn
from ...utils import check_integer
from .base import BaseAttention, TokenLayout
from .linear_projection import apply_dropout
from .packed_images import forward_by_image
from .rotary import RotaryCoordinates
from .softmax import softmax_attention
from .token_layout import HwShape

GRID = 64  # side of the grid of points that cores can start at


class CoreCoordinates(NamedTuple):
    """Coordinates (x, y) of cores and map tokens; a map spans -1 to 1 in both."""

    cores: Tensor  # [B, M, 2]
    tokens: Tensor  # [B or 1, N, 2]

    def images(self, packed: PackedShapes) -> 'List[CoreCoordinates]':
        """Return those of each of the packed images, whose cores are a batch."""
        tokens = packed.with_extra_tokens(0).split(self.tokens)
        return [CoreCoordinates(*pair) for pair in zip(self.cores.split(1), tokens)]


@MODELS.register_module()
class CoreAttention(BaseAttention):
    """Core attention, "VECA" (Song et al., arXiv 2605.12491, 2026): linear in the number of tokens.

    M cores read all tokens and each other; tokens read the M cores only::

        core_i = sum_j softmax_j(q_i . k_j / sqrt d) v_j      j: cores and tokens
        token_i = sum_j softmax_j(q_i . k_j / sqrt d) v_j     j: cores

    Queries and keys are rotated by coordinates from -1 to 1, see
    :func:`.core.rotation_angles`: tokens by those of their cell, and cores by learnt ones.
    With a ``key_padding_mask`` the image without its padding spans -1 to 1.

    ``ViT`` carries the cores from layer to layer and moves them, as VECA does, see
    :class:`mmlinattn.models.backbones.CoreTokens`. In other backbones each layer has cores of its
    own, which read the tokens before the tokens read them; extra tokens have no position there.

    Args:
        num_cores: M. A checkpoint with more cores loads its first M.
        nested: train ``ViT`` with a random number of cores, a multiple of this divisor of M, so
            that the first cores also work alone; 0 for all cores.
        rotary: options of :class:`.RotaryCoordinates` other than ``base=100``, ``rescale=2`` and
            ``shift=0.08``; the last two change the coordinates of the tokens in training.
        zero_frequencies: share of the angles, of the slowest, that are 0.
        own_cores: False if the backbone carries the cores; ``ViT`` sets it.
        embed_dims, num_heads, kwargs: options of :class:`BaseAttention` but ``gate`` and ``lepe``.

    Raises:
        ValueError: an option is out of range, or ``coords`` are missing.

    Example:
        >>> attn = CoreAttention(embed_dims=64, num_heads=2, num_cores=16)
        >>> attn(torch.randn(2, 12 * 20, 64), hw_shape=(12, 20)).shape
        torch.Size([2, 240, 64])
    """

    needs_map = True
    coordinates: RotaryCoordinates
    backends = ('auto',)  # SDPA chooses its kernel itself
    backbone_options = (*BaseAttention.backbone_options, 'own_cores')
    unsupported_options = ('gate', 'lepe')

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        num_cores: int = 64,
        nested: int = 0,
        rotary: Optional[dict] = None,
        zero_frequencies: float = 0.125,
        own_cores: bool = True,
        **kwargs,
    ) -> None:
        if not isinstance(rotary, (dict, type(None))):
            raise ValueError(
                f'rotary of CoreAttention must be a dict of options or None, got {rotary!r}: set '
                'rotary=dict() in attn_cfg'
            )
        rotary = dict(dict(base=100.0, rescale=2.0, shift=0.08), **(rotary or {}))
        super().__init__(embed_dims, num_heads, rotary=rotary, **kwargs)
        count = check_integer('num_cores', num_cores)
        self.nested = check_integer('nested', nested, least=0)
        if nested and own_cores:
            raise ValueError(
                f'nested={nested} needs a backbone that carries the cores: take ViT, or nested=0'
            )
        if nested and count % nested:
            raise ValueError(f'nested must divide num_cores={count}, got {nested}')
        zeros = round(check_rate('zero_frequencies', zero_frequencies) * (self.head_dim // 4))
        self.rotation = (self.coordinates.base, zeros)
        self.num_carried_cores, self.cores = 0 if own_cores else count, None
        if own_cores:
            self.cores = new_cores(count, embed_dims)
            self.coords = new_coordinates(count)  # before their tanh
            load_first_cores(self, 'cores', 'coords')

    def forward(
        self,
        x: Tensor,
        hw_shape: HwShape,
        query_pos: Optional[Tensor] = None,
        key_padding_mask: Optional[Tensor] = None,
        num_extra_tokens: int = 0,
        coords: Optional[CoreCoordinates] = None,
    ) -> Tensor:
        """Apply the attention; with ``own_cores=False`` extra tokens are cores at ``coords``."""
        layout = self.token_layout(x, hw_shape, query_pos, key_padding_mask, num_extra_tokens)
        if (coords is None) != (self.cores is not None):
            raise ValueError(
                'coords must be given, by the backbone: ViT does; in others leave own_cores out'
                if coords is None
                else 'coords must be None for a layer with cores of its own (own_cores=True)'
            )
        if layout.packed is not None:
            more = () if coords is None else (coords.images(layout.packed),)
            return forward_by_image(self, x, query_pos, layout, *more)
        q, k, v = (self.split_heads(part) for part in self.project(x, query_pos, layout)[:3])
        if coords is None:
            augment = self.coordinates.draw(x.device) if self.training else None
            mask = layout.without_extra_tokens().key_padding_mask
            tokens = map_coordinates(layout.hw_shape, x, mask, augment)
            tokens = F.pad(tokens, (0, 0, num_extra_tokens, 0))  # the centre is not rotated
            angles = rotation_angles(tokens, q, *self.rotation)
            q, k = rotate(q, angles), rotate(k, angles)
        else:
            angles = [rotation_angles(part, q, *self.rotation) for part in coords]
            q, k = (
                torch.cat([rotate(*pair) for pair in zip(layout.split_extra(x, 2), angles)], 2)
                for x in (q, k)
            )
        out = self.attend(q, k, v, layout)
        return apply_dropout(self.proj_drop, self.proj(out.transpose(1, 2).flatten(2)))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout) -> Tensor:
        mask, count = layout.key_padding_mask, layout.num_extra_tokens
        if self.cores is None:
            read = softmax_attention(q[:, :, :count], k, v, mask)
            out = softmax_attention(q[:, :, count:], k[:, :, :count], v[:, :, :count])
            return torch.cat([read, out], 2)
        cores = self.cores.expand(q.shape[0], -1, -1)
        core_q, core_k, core_v = self._core_heads(cores)
        hidden = None if mask is None else F.pad(mask, (cores.shape[1], 0))
        keys, values = torch.cat([core_k, k], 2), torch.cat([core_v, v], 2)
        read = softmax_attention(core_q, keys, values, hidden)
        cores = cores + self.proj(read.transpose(1, 2).flatten(2))
        return zero_padding(softmax_attention(q, *self._core_heads(cores)[1:]), mask)

    def _core_heads(self, cores: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values (B, heads, M, d) of the layer's own cores."""
        q, k, v = (self.split_heads(part) for part in self.in_proj(cores).chunk(3, -1))
        angles = rotation_angles(self.coords.tanh(), q, *self.rotation)
        return rotate(q, angles), rotate(k, angles), v


def map_coordinates(
    hw_shape: Tuple[int, int], like: Tensor, mask: Mask = None, augment: Optional[Tensor] = None
) -> Tensor:
    """Return the coordinates (B or 1, N, 2) of map tokens, the centres of their cells.

    Args:
        hw_shape: (H, W) of the map, which spans -1 to 1 in both, without its padding.
        like: its device is that of the result, and its dtype, which is at least float32.
        mask: (B, N) bool, True = padding, below and right of an image.
        augment: (2, 2), shifts of rows and columns, then the factors that follow, see
            :class:`.RotaryCoordinates`.
    """
    height, width = hw_shape
    options: dict = dict(dtype=accumulation_dtype(like.dtype), device=like.device)
    rows, columns = torch.arange(height, **options), torch.arange(width, **options)
    sizes: Any = (height, width)
    if mask is not None:
        real = ~mask.unflatten(1, (height, width))  # [B, H, W]
        sizes = [real.any(dim).sum(1, keepdim=True).clamp(min=1) for dim in (2, 1)]
    y, x = (2 * (cell + 0.5) / size - 1 for cell, size in zip((rows, columns), sizes))
    if augment is not None:
        y, x = ((cell + shift) * factor for cell, shift, factor in zip((y, x), *augment))
    y, x = y.view(-1, height, 1), x.view(-1, 1, width)
    return torch.stack(torch.broadcast_tensors(x, y), -1).flatten(1, 2)


def rotation_angles(coords: Tensor, like: Tensor, base: float, zeros: int) -> Tensor:
    """Return cosines and sines (B or 1, 1, N, d / 2, 2) for coordinates (B or 1, N, 2).

    x turns the first half of the d channels of ``like`` and y the second, in neighbouring pairs, by
    ``2 pi coordinate / base^(t / (d / 4))``; the last ``zeros`` of them are 0.
    """
    coords = coords.to(accumulation_dtype(coords.dtype))
    count = like.shape[-1] // 4
    frequencies = constant(_frequencies, coords.device, count, base, zeros, coords.dtype)
    angles = (coords[:, None, :, :, None] * frequencies).flatten(-2)  # [B, 1, N, d / 2]
    return torch.stack([angles.cos(), angles.sin()], -1).to(like.dtype)


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Rotate queries or keys (B, heads, N, d) by the result of :func:`rotation_angles`."""
    return turn(x, angles, False, is_tracing())


def _frequencies(
    count: int, base: float, zeros: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    exponent = torch.arange(count - zeros, dtype=dtype, device=device) / count
    return F.pad(2 * math.pi * base**-exponent, (0, zeros))


def new_coordinates(count: int) -> nn.Parameter:
    """Return coordinates (1, M, 2) before their tanh, which start as farthest points of the square.

    The first is near the centre; each other one is the farthest from those before.
    """
    axis = (2 * torch.arange(GRID, device='cpu') + 1) / GRID - 1
    grid = torch.cartesian_prod(axis, axis)
    index, distance, points = int(grid.norm(dim=1).argmin()), torch.full_like(grid[:, 0], 9), []
    for _ in range(count):
        points.append(grid[index])
        distance = distance.minimum((grid - grid[index]).norm(dim=1))
        index = int(distance.argmax())
    return nn.Parameter(torch.tensor(torch.stack(points).atanh().tolist())[None])


def new_cores(count: int, embed_dims: int) -> nn.Parameter:
    """Return learnt cores (1, M, C), normal with std ``C^-1/2`` at first."""
    return nn.Parameter(torch.randn(1, count, embed_dims) / embed_dims**0.5)


def load_first_cores(module: nn.Module, *names: str) -> None:
    """Let parameters (1, M, ...) of a module load the first M of a checkpoint that has more."""
    module._register_load_state_dict_pre_hook(partial(_shorten, names), with_module=True)


def _shorten(
    names: Sequence[str], module: nn.Module, state_dict: dict, prefix: str, *_: Any
) -> None:
    for name in names:
        loaded, own = state_dict.get(prefix + name), getattr(module, name)
        if loaded is not None and loaded.dim() == own.dim():
            state_dict[prefix + name] = loaded[:, : own.shape[1]]
