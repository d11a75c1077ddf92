"""Encoder of DETR with any attention of this package."""

from typing import Optional

from mmcv.cnn.bricks.transformer import FFN
from mmengine.model import BaseModule, ModuleList
from torch import Tensor, nn

from ..layers import AttnCfg, build_attention, expand_attn_cfg
from ..layers.token_layout import HwShape


class DETRFFN(FFN):
    """Feed-forward layer of DETR, mmcv's ``FFN`` with its residual connection.

    mmcv inspects the signature of ``FFN.forward`` in each call, which takes longer than the layer.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to tokens (B, N, C)."""
        return x + self.layers(x)


class SMCAEncoderLayer(BaseModule):
    """Self-attention and feed-forward layer, each with a residual connection and a norm after it.

    Args:
        attn_cfg: the attention, see :func:`mmlinattn.models.layers.build_attention`.
        embed_dims, num_heads: channels and heads.
        feedforward_channels: hidden channels of the feed-forward layer.
        dropout: dropout rate on the outputs of attention and feed-forward layer, and inside the
            latter. Some attentions have an option for dropout on attention weights.

    Raises:
        KeyError, TypeError, ValueError: errors of the attention.
    """

    def __init__(
        self,
        attn_cfg: AttnCfg,
        embed_dims: int = 256,
        num_heads: int = 8,
        feedforward_channels: int = 2048,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.embed_dims = embed_dims
        self.self_attn = build_attention(attn_cfg, embed_dims, num_heads, proj_drop=dropout)
        self.ffn = DETRFFN(embed_dims, feedforward_channels, ffn_drop=dropout)
        self.norms = ModuleList(nn.LayerNorm(embed_dims) for _ in range(2))

    def forward(
        self,
        x: Tensor,
        hw_shape: HwShape,
        query_pos: Optional[Tensor] = None,
        key_padding_mask: Optional[Tensor] = None,
    ) -> Tensor:
        """Encode tokens x (B, N, C); arguments as in :class:`BaseAttention`."""
        x = self.norms[0](x + self.self_attn(x, hw_shape, query_pos, key_padding_mask))
        return self.norms[1](self.ffn(x))


class SMCAEncoder(BaseModule):
    """Encoder of DETR, a sequence of layers without a final norm.

    Padded tokens are masked as keys; their outputs are undefined.

    Args:
        num_layers: number of layers.
        layer_cfg: arguments of :class:`SMCAEncoderLayer`, shared by all layers; ``attn_cfg`` may
            be a list with one attention per layer.

    Attributes:
        layer_attn_cfgs: attention of each layer.

    Raises:
        ValueError: the number of attentions differs from ``num_layers``.
        KeyError, TypeError: an attention is unknown, or lacks an option.
    """

    def __init__(self, num_layers: int, layer_cfg: dict, init_cfg: Optional[dict] = None) -> None:
        super().__init__(init_cfg)
        self.layer_attn_cfgs = expand_attn_cfg(layer_cfg['attn_cfg'], num_layers, 'layer')
        self.layers = ModuleList(
            SMCAEncoderLayer(**dict(layer_cfg, attn_cfg=cfg)) for cfg in self.layer_attn_cfgs
        )
        self.embed_dims = self.layers[0].embed_dims

    def forward(
        self,
        x: Tensor,
        hw_shape: HwShape,
        query_pos: Optional[Tensor] = None,
        key_padding_mask: Optional[Tensor] = None,
    ) -> Tensor:
        """Encode tokens x (B, N, C); arguments as in :class:`BaseAttention`."""
        for layer in self.layers:
            x = layer(x, hw_shape, query_pos, key_padding_mask)
        return x
