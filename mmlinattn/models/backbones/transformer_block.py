"""Pre-norm transformer block of most backbones."""

from typing import Any, Tuple

from mmcv.cnn.bricks import DropPath
from mmengine.model import BaseModule
from torch import Tensor, nn

from ..layers import MLP, AttnCfg, MixFFN, build_attention

FFNS = ('mlp', 'mix')


class TransformerBlock(BaseModule):
    """Attention and feed-forward layer, each with a norm before it and a residual connection.

    Args:
        embed_dims, num_heads: channels and heads.
        mlp_ratio: hidden channels of the feed-forward layer over ``embed_dims``.
        attn_cfg: the attention, see :func:`mmlinattn.models.layers.build_attention`.
        drop_path: rate of stochastic depth.
        eps: eps of the norms.
        ffn: feed-forward layer: ``'mlp'`` (:class:`MLP`) or ``'mix'`` (:class:`MixFFN`).
        act: activation of the :class:`MLP`.
        backbone_options: options provided to the attention, see
            :func:`mmlinattn.models.layers.build_attention`.

    Raises:
        ValueError: ``ffn`` or ``act`` is unknown.
        KeyError: the attention is unknown.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        mlp_ratio: float,
        attn_cfg: AttnCfg,
        drop_path: float = 0.0,
        eps: float = 1e-6,
        ffn: str = 'mlp',
        act: str = 'gelu',
        **backbone_options: Any,
    ) -> None:
        super().__init__()
        if ffn not in FFNS:
            raise ValueError(f'ffn must be one of {FFNS}, got {ffn!r}')
        self.norm1 = nn.LayerNorm(embed_dims, eps=eps)
        self.attn = build_attention(attn_cfg, embed_dims, num_heads, **backbone_options)
        self.norm2 = nn.LayerNorm(embed_dims, eps=eps)
        hidden = int(mlp_ratio * embed_dims)
        self.with_conv = ffn == 'mix'
        self.ffn = MixFFN(embed_dims, hidden) if self.with_conv else MLP(embed_dims, hidden, act)
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor, hw_shape: Tuple[int, int], num_extra_tokens: int = 0) -> Tensor:
        """Apply the block to tokens (B, E + N, C), of which the first E are extra tokens."""
        attended = self.attn(self.norm1(x), hw_shape, num_extra_tokens=num_extra_tokens)
        x = x + self.drop_path(attended)
        layout = (hw_shape, num_extra_tokens) if self.with_conv else ()
        return x + self.drop_path(self.ffn(self.norm2(x), *layout))
