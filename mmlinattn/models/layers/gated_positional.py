"""Gated positional self-attention of ConViT as a layer."""

import math
from typing import Callable, Tuple, Union

import torch
from mmengine.registry import MODELS
from torch import Tensor, nn

from ...ops.common.numerics import accumulation_dtype, no_autocast
from .base import BaseAttention, TokenLayout
from .softmax import SoftmaxAttention


@MODELS.register_module()
class GatedPositionalAttention(SoftmaxAttention):
    """Gated positional self-attention, "ConViT" (d'Ascoli et al., ICML 2021)::

        out_i = (1 - s) sum_j softmax_j(q_i . k_j / sqrt(d)) v_j + s sum_j softmax_j(p . r_ij) v_j

    Each head has a gate s = sigmoid(g) and a vector p; ``r_ij = (dx, dy, dx^2 + dy^2)`` is the
    offset from query to key. The content part is quadratic in the number of tokens, one call of
    torch's SDPA. The logits of the position part are a sum of a row term and a column term. Its
    softmax is therefore a product of two, computed in O(N (H + W) d) without an N x N matrix.

    As in the release, the values start as the identity. At first each head attends to its own place
    in a square around the query: to one token, or to four if the side is even. Heads beyond the
    largest square number start with small random p.

    Args:
        embed_dims, num_heads, kwargs: options of :class:`SoftmaxAttention`, whose dropout is on the
            weights of the content part. Extra tokens (class token) are not supported.

    Example:
        >>> attn = GatedPositionalAttention(embed_dims=64, num_heads=4)
        >>> attn(torch.randn(2, 12 * 20, 64), hw_shape=(12, 20)).shape
        torch.Size([2, 240, 64])
    """

    needs_map = True
    backbone_options = BaseAttention.backbone_options
    cross_values = None
    supports_extra_tokens = False

    def __init__(self, embed_dims: int, num_heads: int, **kwargs) -> None:
        super().__init__(embed_dims, num_heads, **kwargs)
        self.gates = nn.Parameter(torch.ones(num_heads))
        self.positions = nn.Parameter(_initial_positions(num_heads))
        self._start_values_as_identity()

    def init_projections(self, init: Callable[[Union[nn.Conv2d, nn.Linear]], None]) -> None:
        super().init_projections(init)
        self._start_values_as_identity()

    def _start_values_as_identity(self) -> None:
        values = slice(2 * self.embed_dims, 3 * self.embed_dims)
        nn.init.eye_(self.in_proj.weight.data[values])
        if self.in_proj.bias is not None:
            nn.init.zeros_(self.in_proj.bias.data[values])

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout) -> Tensor:
        content = super().attend(q, k, v, layout)
        with no_autocast(q):
            position = self.positional_attention(v, layout)
            gate = self.gates.sigmoid()[:, None, None]
            return ((1 - gate) * content + gate * position).to(v.dtype)

    def positional_attention(self, v: Tensor, layout: TokenLayout) -> Tensor:
        """Compute the position part from values (B, heads, N, d), in at least float32."""
        maps = v.to(accumulation_dtype(v.dtype)).unflatten(2, layout.hw_shape)  # [B, h, H, W, d]
        weights = self._axis_weights(layout.hw_shape, maps.dtype)
        if layout.key_padding_mask is None:
            return _weighted_sum(maps, *weights).flatten(2, 3)
        keep = ~layout.key_padding_mask.unflatten(1, layout.hw_shape)[:, None, ..., None]
        total = _weighted_sum(keep.to(maps.dtype), *weights)
        # A query whose keys with weight are all padding yields 0. The bound keeps gradients finite.
        seen = total > torch.finfo(total.dtype).tiny ** 0.8
        out = _weighted_sum(maps.where(keep, 0), *weights) / total.where(seen, 1)
        return out.where(seen, 0).flatten(2, 3)

    def _axis_weights(self, hw_shape: Tuple[int, int], dtype: torch.dtype) -> Tuple[Tensor, Tensor]:
        """Return the softmax over rows, (heads, H, H), and over columns, (heads, W, W)."""
        x_slope, y_slope, square = self.positions.to(dtype)[..., None, None].unbind(1)
        weights = []
        for size, slope in zip(hw_shape, (y_slope, x_slope)):
            coords = torch.arange(size, device=square.device, dtype=dtype)
            offset = coords - coords[:, None]  # from query to key
            weights.append((slope * offset + square * offset.square()).softmax(-1))
        return weights[0], weights[1]


def _initial_positions(num_heads: int) -> Tensor:
    """Return p, (heads, 3), whose logit is largest at another place for each head."""
    side = math.isqrt(num_heads)
    centre = (side - 1) / 2
    offsets = [(head // side - centre, head % side - centre) for head in range(side**2)]
    positions = nn.init.trunc_normal_(torch.empty(num_heads, 3), std=0.02)
    positions[: side**2] = torch.tensor([(2 * dx, 2 * dy, -1.0) for dx, dy in offsets])
    return positions


def _weighted_sum(maps: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Sum maps (B, heads, H, W, d) with the weights of rows and columns."""
    mixed = (rows @ maps.flatten(3)).unflatten(-1, maps.shape[3:])
    return columns[:, None] @ mixed
