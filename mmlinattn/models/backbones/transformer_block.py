"""Pre-norm transformer block of most backbones."""

import inspect
from typing import Any, Callable, Dict, Optional

import torch
from mmcv.cnn.bricks import DropPath
from mmengine.model import BaseModule
from torch import Tensor, nn

from ...ops.common.packed import PackedShapes
from ...utils.suggest import did_you_mean
from ..layers import AttnCfg, BaseAttention, CoreCoordinates, build_attention, registered_subclasses
from ..layers.depthwise_conv import add_depthwise
from ..layers.ffn import MLP, ConvFFN, MixFFN, ResidualMixFFN, SwiGLU
from ..layers.residual import add_branch
from ..layers.token_layout import HwShape, TokenLayout, local_position

FFNS: Dict[str, Callable[..., nn.Module]] = dict(
    mlp=MLP, mix=MixFFN, residual_mix=ResidualMixFFN, residual_conv=ConvFFN, swiglu=SwiGLU
)


class TransformerBlock(BaseModule):
    """Attention and feed-forward layer, each with a norm before it and a residual connection.

    Args:
        embed_dims, num_heads: channels and heads.
        mlp_ratio: hidden channels of the feed-forward layer over ``embed_dims``.
        attn_cfg: the attention, see :func:`mmlinattn.models.layers.build_attention`.
        drop_path: rate of stochastic depth.
        eps: eps of the norms.
        ffn: feed-forward layer: ``'mlp'`` (:class:`MLP`), ``'mix'`` (:class:`MixFFN`),
            ``'residual_mix'`` (:class:`ResidualMixFFN`), ``'residual_conv'`` (:class:`ConvFFN`) or
            ``'swiglu'`` (:class:`SwiGLU`).
        act: activation of the :class:`MLP`.
        layer_scale_init: initial value of learnt scales of the channels after attention and
            feed-forward layer (CaiT, DeiT III); None for no scales.
        cpe: conditional position encoding, a 3x3 depth-wise convolution of the map that is added
            before the attention.
        backbone_options: options provided to the attention, see
            :func:`mmlinattn.models.layers.build_attention`.

    Raises:
        TypeError: an option of the block is misspelt.
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
        layer_scale_init: Optional[float] = None,
        cpe: bool = False,
        **backbone_options: Any,
    ) -> None:
        super().__init__()
        if ffn not in FFNS:
            raise ValueError(f'ffn must be one of {tuple(FFNS)}, got {ffn!r}')
        kinds_known: Dict[str, Any] = registered_subclasses(BaseAttention)
        offered = {name for kind in kinds_known.values() for name in kind.backbone_options}
        own = [*inspect.signature(TransformerBlock).parameters]
        for name in sorted(backbone_options.keys() - offered):
            hint = did_you_mean(name, own)
            if hint:  # others may be of an attention that is not imported
                raise TypeError(f'TransformerBlock has no option {name!r}{hint}')
        conv: dict = dict(padding=1, groups=embed_dims)
        self.cpe = nn.Conv2d(embed_dims, embed_dims, 3, **conv) if cpe else None
        self.norm1 = nn.LayerNorm(embed_dims, eps=eps)
        self.attn = build_attention(attn_cfg, embed_dims, num_heads, **backbone_options)
        self.norm2 = nn.LayerNorm(embed_dims, eps=eps)
        options = dict(act=act) if ffn == 'mlp' else {}
        self.ffn = FFNS[ffn](embed_dims, int(mlp_ratio * embed_dims), **options)
        self.with_conv = isinstance(self.ffn, MixFFN)
        self.drop_path = DropPath(drop_path)
        self.gamma1 = self.gamma2 = None
        if layer_scale_init is not None:
            scale = torch.full((embed_dims,), float(layer_scale_init))
            self.gamma1, self.gamma2 = nn.Parameter(scale), nn.Parameter(scale.clone())

    def forward(
        self,
        x: Tensor,
        hw_shape: HwShape,
        num_extra_tokens: int = 0,
        coords: Optional[CoreCoordinates] = None,
    ) -> Tensor:
        """Apply the block to tokens (B, E + N, C), of which the first E are extra tokens.

        Of packed images x is (1, T, C), see :class:`BaseAttention`. An attention whose cores the
        backbone carries gets their ``coords``.
        """
        packed, given = None, {}
        if coords is not None and self.attn.num_carried_cores:
            given = dict(coords=coords)
        if isinstance(hw_shape, PackedShapes):
            packed = hw_shape.with_extra_tokens(num_extra_tokens)
        size: Any = (1, x.shape[1]) if packed else hw_shape
        if self.cpe is not None and (packed or num_extra_tokens):
            layout = TokenLayout(size, None, None, num_extra_tokens, False, packed)
            x = x + local_position(self.cpe, x, layout)
        elif self.cpe is not None:
            x = add_depthwise(x, self.cpe, size)
        out = self.attn(self.norm1(x), hw_shape, num_extra_tokens=num_extra_tokens, **given)
        x = add_branch(x, out, self.drop_path, self.gamma1, packed)
        # No name keeps the normalised tokens: fresh memory costs as much as some layers.
        conv_args = (hw_shape, num_extra_tokens) if self.with_conv else ()
        out = self.ffn(self.norm2(x), *conv_args)
        return add_branch(x, out, self.drop_path, self.gamma2, packed)
