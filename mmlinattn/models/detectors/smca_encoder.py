"""DETR's encoder with any attention of this package."""

from typing import Optional, Sequence

from mmcv.cnn import build_norm_layer
from mmcv.cnn.bricks.transformer import FFN
from mmengine.model import BaseModule, ModuleList
from torch import Tensor

from ..layers import AttnCfg, attention_cfgs, build_attention


class SMCAEncoderLayer(BaseModule):
    """Self-attention and feed-forward layer, each with its residual and a norm behind it.

    Args:
        attn_cfg: the attention, see :func:`mmlinattn.models.layers.build_attention`.
        embed_dims, num_heads: channels and heads.
        feedforward_channels: hidden channels of the feed-forward layer.
        dropout: on the outputs of attention and feed-forward layer, and inside the latter.
            Dropout on attention weights is an option of the attentions that have weights.
        norm_cfg: the norms.

    Raises:
        KeyError, TypeError, ValueError: of the attention.

    Example:
        >>> import torch
        >>> layer = SMCAEncoderLayer('RALA', embed_dims=32, num_heads=2, feedforward_channels=64)
        >>> layer(torch.randn(2, 35, 32), hw_shape=(5, 7)).shape
        torch.Size([2, 35, 32])
    """

    def __init__(
        self,
        attn_cfg: AttnCfg,
        embed_dims: int = 256,
        num_heads: int = 8,
        feedforward_channels: int = 2048,
        dropout: float = 0.1,
        norm_cfg: Optional[dict] = None,
        init_cfg: Optional[dict] = None,
    ) -> None:
        super().__init__(init_cfg)
        self.embed_dims = embed_dims
        self.self_attn = build_attention(attn_cfg, embed_dims, num_heads, proj_drop=dropout)
        self.ffn = FFN(embed_dims, feedforward_channels, ffn_drop=dropout)
        self.norms = ModuleList(
            build_norm_layer(norm_cfg or dict(type='LN'), embed_dims)[1] for _ in range(2)
        )

    def forward(
        self,
        x: Tensor,
        hw_shape: Sequence[int],
        query_pos: Optional[Tensor] = None,
        key_padding_mask: Optional[Tensor] = None,
    ) -> Tensor:
        """(B, N, C) to (B, N, C); arguments as in the attention contract."""
        x = self.norms[0](x + self.self_attn(x, hw_shape, query_pos, key_padding_mask))
        return self.norms[1](self.ffn(x))


class SMCAEncoder(BaseModule):
    """Encoder of DETR: layers one after the other, no norm behind the last.

    Padding tokens are never attended to; their own outputs are computed and mean nothing.

    Args:
        num_layers: number of layers.
        layer_cfg: arguments of :class:`SMCAEncoderLayer`, shared by all; ``attn_cfg`` may be a
            list, one attention a layer.

    Raises:
        ValueError: another number of attentions than layers, and those of the layers.
    """

    def __init__(self, num_layers: int, layer_cfg: dict, init_cfg: Optional[dict] = None) -> None:
        super().__init__(init_cfg)
        cfgs = attention_cfgs(layer_cfg['attn_cfg'], num_layers, 'layer')
        self.layers = ModuleList(SMCAEncoderLayer(**dict(layer_cfg, attn_cfg=c)) for c in cfgs)
        self.embed_dims = self.layers[0].embed_dims

    def forward(
        self,
        x: Tensor,
        hw_shape: Sequence[int],
        query_pos: Optional[Tensor] = None,
        key_padding_mask: Optional[Tensor] = None,
    ) -> Tensor:
        """(B, N, C) to (B, N, C); arguments as in the attention contract."""
        for layer in self.layers:
            x = layer(x, hw_shape, query_pos, key_padding_mask)
        return x
