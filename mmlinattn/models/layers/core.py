"""Core attention of VECA: a few cores read all tokens, and the tokens read the cores."""

from typing import Optional, Tuple

import torch
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor

from ...ops.common.checks import check_rate
from ...ops.common.numerics import zero_padding
from ...utils import check_integer
from .attention_info import AttentionInfo
from .base import BaseAttention, TokenLayout
from .core_coordinates import (
    CoreCoordinates,
    load_first_cores,
    map_coordinates,
    new_coordinates,
    new_cores,
    rotate,
    rotation_angles,
)
from .linear_projection import apply_dropout
from .packed_images import forward_by_image
from .rotary import RotaryCoordinates
from .softmax import softmax_attention
from .token_layout import HwShape


@MODELS.register_module()
class CoreAttention(BaseAttention):
    """Core attention, "VECA" (Song et al., arXiv 2605.12491, 2026): linear in the number of tokens.

    M cores read all tokens and each other; tokens read the M cores only::

        core_i = sum_j softmax_j(q_i . k_j / sqrt d) v_j      j: cores and tokens
        token_i = sum_j softmax_j(q_i . k_j / sqrt d) v_j     j: cores

    Queries and keys are rotated by coordinates from -1 to 1, see
    :func:`.core_coordinates.rotation_angles`: tokens by those of their cell, and cores by learnt
    ones. With a ``key_padding_mask`` the image without its padding spans -1 to 1.

    ``ViT`` carries the cores from layer to layer and moves them, as VECA does, see
    :class:`mmlinattn.models.backbones.CoreTokens`. In other backbones each layer has cores of its
    own, which read the tokens before the tokens read them; extra tokens have no position there.

    Args:
        embed_dims, num_heads: channels and heads.
        num_cores: M. A checkpoint with more cores loads its first M.
        nested: train ``ViT`` with a random number of cores, a multiple of this divisor of M, so
            that the first cores also work alone; 0 for all cores.
        rotary: options of :class:`.RotaryCoordinates` other than ``base=100``, ``rescale=2`` and
            ``shift=0.08``; the last two change the coordinates of the tokens in training.
        zero_frequencies: share of the angles, of the slowest, that are 0.
        own_cores: False if the backbone carries the cores; ``ViT`` sets it.
        kwargs: options of :class:`BaseAttention` but ``gate`` and ``lepe``.

    Raises:
        ValueError: an option is out of range, or ``coords`` are missing.

    Example:
        >>> attn = CoreAttention(embed_dims=64, num_heads=2, num_cores=16)
        >>> attn(torch.randn(2, 12 * 20, 64), hw_shape=(12, 20)).shape
        torch.Size([2, 240, 64])
    """

    info = AttentionInfo(
        formula='cores: softmax over M cores and N tokens; tokens: softmax over the M cores',
        time='O(N M d)',
        memory='O(N d)',
        source='Song et al., VECA, 2026',
        use='plain ViTs at high resolution: all tokens share a few cores that read the image',
        needs_map=True,
    )

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
            return forward_by_image(self, x, query_pos, layout, coords)
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
