"""Gated positional self-attention as a layer."""

import math
from typing import Tuple

import torch
from mmengine.registry import MODELS
from torch import Tensor, nn

from ...ops.common.numerics import accumulation_dtype, no_autocast
from .attention_info import AttentionCard
from .base import BaseAttention, TokenMap
from .softmax import softmax_attention


@MODELS.register_module()
class GatedPositionalAttention(BaseAttention):
    """Gated positional self-attention (d'Ascoli et al., "ConViT", ICML 2021)::

        out_i = (1 - s) sum_j softmax_j(q_i . k_j / sqrt(d)) v_j + s sum_j softmax_j(p . r_ij) v_j

    with a gate s = sigmoid(g) and a vector p for each head, and ``r_ij = (dx, dy, dx^2 + dy^2)``,
    the way from query to key. The content part is quadratic in the number of tokens, in one call
    of torch's SDPA. The position part is not: its logits are a sum of one term for the row and one
    for the column, so that its softmax is a product of two, in O(N (H + W) d) and without N x N.

    At the start head h looks at one neighbour: the heads are a square around the query as in the
    paper, whose numbers of heads are squares. With others the square has places left over. The
    release also starts the values as the identity; here projections start as the host's do.

    Args:
        embed_dims, num_heads: channels and heads.
        locality_strength: how narrowly a head looks at its neighbour at the start.
        attn_drop: dropout on the weights of the content part.
        others: see :class:`BaseAttention`.

    Raises:
        ValueError: a locality_strength that is not positive, and those of :class:`BaseAttention`.

    Example:
        >>> import torch
        >>> attn = GatedPositionalAttention(embed_dims=64, num_heads=4)
        >>> attn(torch.randn(2, 12 * 20, 64), hw_shape=(12, 20)).shape
        torch.Size([2, 240, 64])
    """

    backends = ('auto',)
    card = AttentionCard(
        formula='(1-s) softmax(q_i . k_j/sqrt d) v_j + s softmax(p . r_ij) v_j, s = sigmoid(gate)',
        time='O(N^2 d)',
        memory='O(N d)',
        source="d'Ascoli et al., ICML 2021",
        use='small maps and little data: starts as a convolution; quadratic',
        map=True,
    )
    takes_extra_tokens = False

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        locality_strength: float = 1.0,
        attn_drop: float = 0.0,
        **kwargs,
    ) -> None:
        super().__init__(embed_dims, num_heads, **kwargs)
        if not locality_strength > 0:
            raise ValueError(f'locality_strength must be positive, got {locality_strength}')
        self.attn_drop = attn_drop
        self.gates = nn.Parameter(torch.ones(num_heads))
        self.positions = nn.Parameter(locality_strength * _neighbours(num_heads))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, tokens: TokenMap) -> Tensor:
        dropout = self.attn_drop if self.training else 0.0
        content = softmax_attention(q, k, v, tokens.key_padding_mask, dropout=dropout)
        with no_autocast(q):
            position = self.look_around(v, tokens)
            gate = self.gates.sigmoid()[:, None, None]
            return ((1 - gate) * content + gate * position).to(v.dtype)

    def look_around(self, v: Tensor, tokens: TokenMap) -> Tensor:
        """The position part alone, for values (B, heads, N, d), in at least float32."""
        maps = v.to(accumulation_dtype(v.dtype)).unflatten(2, tokens.hw_shape)  # [B, h, H, W, d]
        weights = self._axis_weights(tokens.hw_shape, maps.dtype)
        if tokens.key_padding_mask is None:
            return _filter(maps, *weights).flatten(2, 3)
        keep = ~tokens.key_padding_mask.unflatten(1, tokens.hw_shape)[:, None, ..., None]
        total = _filter(keep.to(maps.dtype), *weights)
        # Less than this is left only of a query with no key in sight: 0, as without any key.
        share = total.clamp(min=torch.finfo(total.dtype).tiny).reciprocal()
        return (_filter(maps.where(keep, 0), *weights) * share).flatten(2, 3)

    def _axis_weights(self, hw_shape: Tuple[int, int], dtype: torch.dtype) -> Tuple[Tensor, Tensor]:
        """Softmax over rows, (heads, H, H), and over columns, (heads, W, W)."""
        across, down, square = self.positions.to(dtype)[..., None, None].unbind(1)
        weights = []
        for size, slope in zip(hw_shape, (down, across)):
            place = torch.arange(size, device=square.device, dtype=dtype)
            way = place - place[:, None]  # from query to key
            weights.append((slope * way + square * way.square()).softmax(-1))
        return weights[0], weights[1]


def _neighbours(num_heads: int) -> Tensor:
    """(heads, 3): weights of dx, dy and the squared distance whose largest sum is one neighbour."""
    side = math.ceil(num_heads**0.5)
    centre = (side - 1) / 2
    ways = [(head // side - centre, head % side - centre) for head in range(num_heads)]
    return torch.tensor([(2 * dx, 2 * dy, -1.0) for dx, dy in ways])


def _filter(maps: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """(B, heads, H, W, d) with the weights of rows and columns."""
    mixed = (rows @ maps.flatten(3)).unflatten(-1, maps.shape[3:])
    return columns[:, None] @ mixed
