"""Decoder of SMCA, whose cross-attention is modulated around predicted points."""

from typing import List, NamedTuple, Optional, Sequence, Tuple

import torch
from mmdet.models.layers import MLP
from mmengine.model import BaseModule, ModuleList
from torch import Tensor, nn

from ...ops.common.checks import check_heads, check_hw_shape, check_rate
from ...ops.common.numerics import accumulation_dtype, no_autocast
from ..layers import SoftmaxAttention, softmax_attention
from ..layers.linear_projection import apply_dropout, linear_parts
from .detr_attention import build_detr_attention
from .smca_encoder import DETRFFN


class Memory(NamedTuple):
    """Encoder output and its positions, the keys and values of the cross-attention."""

    tokens: Tensor  # [B, N, C], output of the encoder
    hw_shape: Sequence[int]  # (H, W), H * W == N
    pos: Tensor  # [B, N, C], added to the keys
    mask: Optional[Tensor] = None  # [B, N] bool, True = padding
    keys: Optional[Tensor] = None  # tokens + pos, which the decoder computes once for all layers


class ModulatedAttention(BaseModule):
    """Cross-attention with a modulation map added to the logits.

    Logits, softmax and sum are computed in at least float32, since the map can exceed the range of
    half precision.
    """

    def __init__(self, embed_dims: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed_dims = embed_dims
        self.head_dim = check_heads(embed_dims, num_heads)
        self.attn_drop = check_rate('dropout', dropout)
        self.in_proj = nn.Linear(embed_dims, 3 * embed_dims)
        self.proj = nn.Linear(embed_dims, embed_dims)
        for layer in (self.in_proj, self.proj):
            nn.init.zeros_(layer.bias)  # as released
        self.proj_drop = nn.Dropout(dropout)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        modulation: Tensor,
        key_padding_mask: Optional[Tensor] = None,
    ) -> Tensor:
        """Return the result (B, Q, C), before the residual; query and key include positions.

        The modulation (B, heads, Q, N) is added to the scaled logits.
        """
        width = self.embed_dims
        parts = linear_parts(self.in_proj, (query, width), (key, width), (value, width))
        q, k, v = (part.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for part in parts)
        with no_autocast(q):
            dtype = accumulation_dtype(q.dtype)
            q, k, v, bias = (x.to(dtype) for x in (q, k, v, modulation))
            dropout = self.attn_drop if self.training else 0.0
            out = softmax_attention(q, k, v, key_padding_mask, bias=bias, dropout=dropout)
        out = out.transpose(1, 2).flatten(2).to(query.dtype)
        return apply_dropout(self.proj_drop, self.proj(out))


class SMCADecoderLayer(BaseModule):
    """Self-attention, modulated cross-attention and feed-forward layer, each followed by a norm.

    Centre and scale of the map of each head are predicted from the input of the layer, before the
    self-attention.

    Args:
        embed_dims, num_heads: channels and heads.
        feedforward_channels: hidden channels of the feed-forward layer.
        dropout: dropout rate on attention weights, on all three outputs, and inside the
            feed-forward layer.
        smooth: see :func:`gaussian_map`.
        cross_attn_cfg: config of another cross-attention, such as
            ``dict(type='LinearCrossAttention', attn_cfg='MALA')``, see
            :func:`build_detr_attention`; no modulation map, since linear attention has no logits
            to add it to. None for the modulated one.

    Raises:
        ValueError: ``smooth`` is not positive.
        TypeError: ``cross_attn_cfg`` lacks arguments of mmcv's ``MultiheadAttention``.
    """

    def __init__(
        self,
        embed_dims: int = 256,
        num_heads: int = 8,
        feedforward_channels: int = 2048,
        dropout: float = 0.1,
        smooth: float = 8.0,
        cross_attn_cfg: Optional[dict] = None,
    ) -> None:
        super().__init__()
        if smooth <= 0:
            raise ValueError(f'smooth must be positive, got {smooth}')
        self.embed_dims = embed_dims
        self.num_heads = num_heads
        self.smooth = smooth
        self.self_attn = SoftmaxAttention(
            embed_dims, num_heads, attn_drop=dropout, proj_drop=dropout
        )
        self.modulated = cross_attn_cfg is None
        if cross_attn_cfg is None:
            self.cross_attn: nn.Module = ModulatedAttention(embed_dims, num_heads, dropout)
        else:
            sizes = dict(embed_dims=embed_dims, num_heads=num_heads, dropout=dropout)
            try:
                cfg = dict(dict(sizes, batch_first=True), **cross_attn_cfg)
                self.cross_attn = build_detr_attention(**cfg)
            except TypeError as error:
                raise TypeError(
                    "cross_attn_cfg must have the arguments of mmcv's MultiheadAttention, as "
                    "dict(type='LinearCrossAttention', attn_cfg='MALA') has, "
                    f'got {cross_attn_cfg!r} ({error})'
                ) from error
        self.ffn = DETRFFN(embed_dims, feedforward_channels, ffn_drop=dropout)
        self.norms = ModuleList(nn.LayerNorm(embed_dims) for _ in range(3))
        self.point_norm = nn.LayerNorm(embed_dims)
        self.offset = nn.Linear(embed_dims, 2 * num_heads) if self.modulated else None
        self.scale = nn.Linear(embed_dims, 2 * num_heads) if self.modulated else None

    def point_features(self, query: Tensor, query_pos: Tensor) -> Tensor:
        """Return the features that points, offsets and scales are predicted from, (B, Q, C)."""
        return self.point_norm(query + query_pos)

    def modulation(
        self, query: Tensor, query_pos: Tensor, reference: Tensor, hw_shape: Sequence[int]
    ) -> Tensor:
        """Return the modulation map of each head, (B, heads, Q, H * W).

        ``query`` and ``query_pos`` (B, Q, C) are the input of the layer, ``reference`` (B, Q, 2)
        the reference points, x and y in cells.
        """
        assert self.offset is not None and self.scale is not None  # self.modulated
        features = self.point_features(query, query_pos)
        offsets = self.offset(features).unflatten(-1, (self.num_heads, -1))  # [B, Q, heads, 2]
        scales = self.scale(features).unflatten(-1, (self.num_heads, -1))
        scales = scales.to(reference.dtype).square()
        centers = reference.unsqueeze(-2) + offsets.to(reference.dtype)
        return gaussian_map(centers, scales, hw_shape, self.smooth)

    def forward(
        self, query: Tensor, query_pos: Tensor, reference: Tensor, memory: Memory
    ) -> Tensor:
        """Apply the layer to the queries (B, Q, C); arguments as in :meth:`modulation`."""
        modulation = None
        if self.modulated:
            modulation = self.modulation(query, query_pos, reference, memory.hw_shape)
        query = query + self.self_attn(query, (1, query.shape[1]), query_pos)
        query = self.norms[0](query)
        if modulation is None:
            query = self.cross_attn(
                query, memory.tokens, query_pos=query_pos, key_pos=memory.pos,
                key_padding_mask=memory.mask,
            )  # fmt: skip
            return self.norms[2](self.ffn(self.norms[1](query)))
        keys = memory.tokens + memory.pos if memory.keys is None else memory.keys
        attended = self.cross_attn(query + query_pos, keys, memory.tokens, modulation, memory.mask)
        query = self.norms[1](query + attended)
        return self.norms[2](self.ffn(query))


class SMCADecoder(BaseModule):
    """Decoder with spatially modulated co-attention, "Fast Convergence of DETR with Spatially
    Modulated Co-Attention" (Gao et al., ICCV 2021), single scale as released.

    One point per query is predicted before the first layer. It is the reference point of the maps
    of all layers, and the head adds it, before the sigmoid, to the boxes.

    Args:
        num_layers: number of layers.
        layer_cfg: arguments of :class:`SMCADecoderLayer`, shared by all layers.
        stride: pixels per cell.

    Raises:
        ValueError: ``stride`` is not positive; errors of the layers; in the forward pass, the
            memory has another number of tokens than H * W.

    Example:
        >>> decoder = SMCADecoder(2, dict(embed_dims=32, num_heads=4, feedforward_channels=64))
        >>> queries, memory = torch.randn(2, 2, 10, 32), torch.randn(2, 2, 35, 32)
        >>> states, points = decoder(
        ...     *queries, Memory(memory[0], (5, 7), memory[1]), torch.tensor([[224.0, 160.0]])
        ... )
        >>> states.shape, points.shape
        (torch.Size([2, 2, 10, 32]), torch.Size([2, 10, 2]))
    """

    def __init__(
        self, num_layers: int, layer_cfg: dict, stride: int = 32, init_cfg: Optional[dict] = None
    ) -> None:
        super().__init__(init_cfg)
        if stride <= 0:
            raise ValueError(f'stride must be positive, got {stride}')
        self.stride = stride
        self.layers = ModuleList(SMCADecoderLayer(**layer_cfg) for _ in range(num_layers))
        for layer in self.layers[1:]:
            if not layer.modulated:  # DDP stops at unused parameters
                layer.point_norm = None
        self.embed_dims = self.layers[0].embed_dims
        self.point = MLP(self.embed_dims, self.embed_dims, 2, 3)
        self.post_norm = nn.LayerNorm(self.embed_dims)

    def predict_points(
        self, query: Tensor, query_pos: Tensor, image_sizes: Tensor
    ) -> Tuple[Tensor, Tensor]:
        """Predict the points (B, Q, 2) of the queries from the input of the first layer.

        ``image_sizes`` (B, 2) are width and height in pixels without padding. Returns the points
        before the sigmoid, and the reference points in cells, x and y.
        """
        points = self.point(self.layers[0].point_features(query, query_pos))
        cells = image_sizes / self.stride  # not rounded: an image can end within a cell
        return points, points.to(cells.dtype).sigmoid() * cells[:, None]

    def forward(
        self, query: Tensor, query_pos: Tensor, memory: Memory, image_sizes: Tensor
    ) -> Tuple[Tensor, Tensor]:
        """Decode the queries.

        Args:
            query, query_pos, image_sizes: as in :meth:`predict_points`.
            memory: output of the encoder.

        Returns:
            normed outputs of all layers (layers, B, Q, C), and the points (B, Q, 2) before the
            sigmoid.
        """
        check_hw_shape(memory.tokens.shape[1], memory.hw_shape, 'memory')
        points, reference = self.predict_points(query, query_pos, image_sizes)
        if self.layers[0].modulated:
            memory = memory._replace(keys=memory.tokens + memory.pos)
        states: List[Tensor] = []
        for layer in self.layers:
            query = layer(query, query_pos, reference, memory)
            states.append(self.post_norm(query))
        return torch.stack(states), points


def gaussian_map(
    centers: Tensor, scales: Tensor, hw_shape: Sequence[int], smooth: float = 8.0
) -> Tensor:
    """Return the logarithm of a Gaussian around a point, per query and head.

    With dx, dy the distances of a cell from the centre, it is ``-(s_x dx^2 + s_y dy^2) / smooth``.

    Cells have integer coordinates: cell i lies at i, not at i + 0.5.

    Args:
        centers: (B, Q, heads, 2), x and y in cells; may lie outside of the map.
        scales: (B, Q, heads, 2), s_x and s_y, not negative; larger scales are narrower.
        hw_shape: (H, W) of the map.
        smooth: divisor; with scale 1 the standard deviation is ``sqrt(smooth / 2)`` cells.

    Returns:
        (B, heads, Q, H * W), row-major over the map, 0 at the centre and negative elsewhere. At
        least float32, also under autocast, since distant corners reach several hundreds.
    """
    height, width = hw_shape
    with no_autocast(centers):
        dtype = accumulation_dtype(centers.dtype)
        x, y = centers.to(dtype).transpose(1, 2).unsqueeze(-2).unbind(-1)  # [B, heads, Q, 1]
        columns = torch.arange(width, dtype=dtype, device=centers.device)
        rows = torch.arange(height, dtype=dtype, device=centers.device)
        # [B, heads, Q, 1]; dividing the scales is cheaper than dividing the map.
        scale_x, scale_y = (scales.to(dtype) / -smooth).transpose(1, 2)[..., None, :].unbind(-1)
        along_x, along_y = scale_x * (x - columns).square(), scale_y * (y - rows).square()
        out = along_x.unsqueeze(-2) + along_y.unsqueeze(-1)  # [B, heads, Q, H, W]
        return out.flatten(-2)
