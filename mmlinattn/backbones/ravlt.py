"""RAVLT, the backbone of "Breaking the Low-Rank Dilemma of Linear Attention" (CVPR 2025)."""

from typing import List, Optional, Sequence, Tuple, Union

import torch
from mmcv.cnn import ConvModule
from mmcv.cnn.bricks import DropPath
from mmengine.model import BaseModule, trunc_normal_init
from mmengine.registry import MODELS
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..layers import ConvFFN, build_attention, map_to_tokens, tokens_to_map
from .common import (
    NUM_STAGES,
    AttnCfg,
    architecture,
    check_stages,
    drop_path_rates,
    freeze,
    own_layers,
    run,
)

# Table 1 of the paper; layer scale and stochastic depth of the released models.
ARCHITECTURES = {
    'tiny': dict(
        embed_dims=(64, 128, 256, 512),
        depths=(2, 2, 6, 2),
        num_heads=(1, 2, 4, 8),
        drop_path_rate=0.1,
        layer_scale_init=(1.0, 1.0, 1.0, 1.0),
    ),
    'small': dict(
        embed_dims=(64, 128, 320, 512),
        depths=(3, 5, 9, 3),
        num_heads=(1, 2, 5, 8),
        drop_path_rate=0.15,
        layer_scale_init=(1.0, 1.0, 1.0, 1.0),
    ),
    'base': dict(
        embed_dims=(96, 192, 384, 512),
        depths=(4, 6, 12, 6),
        num_heads=(1, 2, 6, 8),
        drop_path_rate=0.4,
        layer_scale_init=(1.0, 1.0, 1e-6, 1e-6),
    ),
    'large': dict(
        embed_dims=(96, 192, 448, 640),
        depths=(4, 7, 19, 8),
        num_heads=(1, 2, 7, 10),
        drop_path_rate=0.55,
        layer_scale_init=(1e-6, 1e-6, 1e-6, 1e-6),
    ),
}
ARCH_DEFAULTS = dict(
    mlp_ratios=(3.5, 3.5, 3.5, 3.5), drop_path_rate=0.1, layer_scale_init=(1.0, 1.0, 1.0, 1.0)
)
STAGE_ATTENTIONS = {
    'rala': dict(type='RALA'),
    'softmax': dict(type='SoftmaxAttention', rotary=True, lepe=5, gate='proj'),
}
STRIDE = 32


class RAVLTBlock(BaseModule):
    """Conditional position, attention and feed-forward layer, each with its residual.

    Args:
        embed_dims, num_heads: channels and heads.
        mlp_ratio: hidden channels of the feed-forward layer over ``embed_dims``.
        attn_cfg: the attention, see :func:`mmlinattn.layers.build_attention`.
        drop_path: rate of stochastic depth.
        layer_scale_init: initial value of the per-channel scales.
        cpe: add a 3x3 depth-wise convolution of the input first.
        with_cp: recompute activations in the backward pass instead of keeping them.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        mlp_ratio: float,
        attn_cfg: AttnCfg,
        drop_path: float = 0.0,
        layer_scale_init: float = 1.0,
        cpe: bool = True,
        with_cp: bool = False,
    ) -> None:
        super().__init__()
        self.with_cp = with_cp
        self.cpe = (
            nn.Conv2d(embed_dims, embed_dims, 3, padding=1, groups=embed_dims) if cpe else None
        )
        self.norm1 = nn.LayerNorm(embed_dims, eps=1e-6)
        self.attn = build_attention(attn_cfg, embed_dims, num_heads)
        self.norm2 = nn.LayerNorm(embed_dims, eps=1e-6)
        self.ffn = ConvFFN(embed_dims, int(mlp_ratio * embed_dims))
        self.drop_path = DropPath(drop_path)
        self.gamma1 = nn.Parameter(torch.full((embed_dims,), float(layer_scale_init)))
        self.gamma2 = nn.Parameter(torch.full((embed_dims,), float(layer_scale_init)))

    def forward(self, x: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        """(B, N, C) to (B, N, C)."""
        return run(self._forward, self.with_cp, x, hw_shape)

    def _forward(self, x: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        if self.cpe is not None:
            # Not in place: under autocast the convolution is half, the residual is not.
            x = x + map_to_tokens(self.cpe(tokens_to_map(x, hw_shape)))
        x = torch.addcmul(x, self.drop_path(self.attn(self.norm1(x), hw_shape)), self.gamma1)
        return torch.addcmul(x, self.drop_path(self.ffn(self.norm2(x), hw_shape)), self.gamma2)


@MODELS.register_module()
class RAVLT(BaseModule):
    """Vision transformer with rank-augmented linear attention (Fan et al., CVPR 2025, table 1).

    The released models use RALA in the first two stages and softmax attention, with the same
    rotary position, local position and gate, in the last two; that is the default and what
    released weights need. The paper describes RALA in all four:
    ``stage_attns=('rala', 'rala', 'rala', 'rala')``. Both have the same parameters.

    Args:
        arch: ``'tiny'``, ``'small'``, ``'base'``, ``'large'``, or a dict with ``embed_dims``,
            ``depths``, ``num_heads`` (four values each) and optionally ``mlp_ratios``,
            ``drop_path_rate`` and ``layer_scale_init`` (a number or four).
        stage_attns: attention of each stage: ``'rala'``, ``'softmax'`` or any attention config.
        in_channels: channels of the image.
        out_indices: stages to return, in 0..3; those after the last of them are not built.
        drop_path_rate: overrides the architecture's rate of stochastic depth, which rises
            linearly from 0 over the blocks.
        cpe: conditional position encoding in every block (off: a row of table 9).
        out_norm: LayerNorm over the channels of every output, for dense prediction; the released
            classifiers have none.
        norm_cfg: norm of stem and downsampling, SyncBN as released.
        norm_eval: keep these norms in eval mode in training.
        frozen_stages: -1 nothing, 0 the stem, k the stem and the first k stages.
        with_cp: activation checkpointing in every block.
        init_cfg: for example ``dict(type='Pretrained', checkpoint=..., prefix='backbone.')``.

    Inputs:
        (B, in_channels, H, W) with H, W >= 32; any such size.

    Returns:
        tuple of (B, C_i, ceil(H / s_i), ceil(W / s_i)), strides s = 4, 8, 16, 32, contiguous;
        channels_last is used inside only.

    Raises:
        ValueError: an unknown architecture or option value, or an image smaller than the stride.
        KeyError: an unknown stage attention.

    Example:
        >>> import torch
        >>> model = RAVLT('tiny', norm_cfg=dict(type='BN')).eval()
        >>> [tuple(f.shape) for f in model(torch.randn(1, 3, 64, 96))]
        [(1, 64, 16, 24), (1, 128, 8, 12), (1, 256, 4, 6), (1, 512, 2, 3)]
    """

    def __init__(
        self,
        arch: Union[str, dict] = 'tiny',
        stage_attns: Sequence[AttnCfg] = ('rala', 'rala', 'softmax', 'softmax'),
        in_channels: int = 3,
        out_indices: Sequence[int] = (0, 1, 2, 3),
        drop_path_rate: Optional[float] = None,
        cpe: bool = True,
        out_norm: bool = True,
        norm_cfg: Optional[dict] = None,
        norm_eval: bool = False,
        frozen_stages: int = -1,
        with_cp: bool = False,
        init_cfg: Optional[Union[dict, List[dict]]] = None,
    ) -> None:
        super().__init__(init_cfg)
        self.arch = arch = architecture(
            arch,
            ARCHITECTURES,
            needed=('embed_dims', 'depths', 'num_heads'),
            defaults=ARCH_DEFAULTS,
            per_stage=('embed_dims', 'depths', 'num_heads', 'mlp_ratios', 'layer_scale_init'),
        )
        attn_cfgs = _stage_attentions(stage_attns)
        self.out_indices = check_stages(out_indices, frozen_stages)
        self.norm_eval = norm_eval
        self.frozen_stages = frozen_stages
        norm_cfg = norm_cfg or dict(type='SyncBN')
        dims, depths = arch['embed_dims'], arch['depths']
        drop_paths = drop_path_rates(
            arch['drop_path_rate'] if drop_path_rate is None else drop_path_rate, depths
        )
        self.stem = _stem(in_channels, dims[0], norm_cfg)
        self.stages = nn.ModuleList()
        self.downsamples = nn.ModuleList()
        for i, dim in enumerate(dims[: max(self.out_indices) + 1]):
            self.stages.append(
                nn.ModuleList(
                    RAVLTBlock(
                        dim,
                        arch['num_heads'][i],
                        arch['mlp_ratios'][i],
                        attn_cfgs[i],
                        drop_path=rate,
                        layer_scale_init=arch['layer_scale_init'][i],
                        cpe=cpe,
                        with_cp=with_cp,
                    )
                    for rate in drop_paths[i]
                )
            )
            if i < max(self.out_indices):
                self.downsamples.append(_conv(dim, dims[i + 1], 2, norm_cfg, act=False))
        self.out_norms = nn.ModuleDict(
            {str(i): nn.LayerNorm(dims[i], eps=1e-6) for i in self.out_indices if out_norm}
        )
        # Maps and tokens are then views of the same memory.
        self.to(memory_format=torch.channels_last)
        self._freeze()

    def forward(self, x: Tensor) -> Tuple[Tensor, ...]:
        if min(x.shape[-2:]) < STRIDE:
            raise ValueError(
                f'inputs must be at least {STRIDE}x{STRIDE} pixels, the stride of the last stage; '
                f'got {x.shape[-2]}x{x.shape[-1]}'
            )
        x = self.stem(x.contiguous(memory_format=torch.channels_last))
        outs = []
        for i, blocks in enumerate(self.stages):
            if i:
                x = self.downsamples[i - 1](x)
            hw_shape, tokens = tuple(x.shape[-2:]), map_to_tokens(x)
            for block in blocks:
                tokens = block(tokens, hw_shape)
            x = tokens_to_map(tokens, hw_shape)
            if i in self.out_indices:
                if self.out_norms:
                    tokens = self.out_norms[str(i)](tokens)
                # MMCV's operators (RoIAlign, ...) read any map as if it were contiguous.
                outs.append(tokens_to_map(tokens, hw_shape).contiguous())
        return tuple(outs)

    def init_weights(self) -> None:
        """Truncated normal (std 0.02), zero biases; then ``init_cfg``, if any, on top."""
        for module in own_layers(self):
            trunc_normal_init(module, std=0.02, bias=0)
        super().init_weights()

    def train(self, mode: bool = True) -> 'RAVLT':
        super().train(mode)
        self._freeze()
        if mode and self.norm_eval:
            for module in self.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
        return self

    def _freeze(self) -> None:
        if self.frozen_stages < 0:
            return
        frozen = [self.stem, *self.stages[: self.frozen_stages]]
        frozen += self.downsamples[: max(self.frozen_stages - 1, 0)]
        freeze(frozen)


def _stage_attentions(stage_attns: Sequence[AttnCfg]) -> List[AttnCfg]:
    if isinstance(stage_attns, (str, dict)) or len(stage_attns) != NUM_STAGES:
        raise ValueError(f'stage_attns must name {NUM_STAGES} attentions, got {stage_attns!r}')
    return [
        STAGE_ATTENTIONS.get(attn, attn) if isinstance(attn, str) else attn for attn in stage_attns
    ]


def _conv(in_channels: int, out_channels: int, stride: int, norm_cfg: dict, act: bool = True):
    return ConvModule(
        in_channels,
        out_channels,
        3,
        stride=stride,
        padding=1,
        bias=True,
        norm_cfg=norm_cfg,
        act_cfg=dict(type='GELU') if act else None,
        inplace=False,
    )


def _stem(in_channels: int, embed_dims: int, norm_cfg: dict) -> nn.Sequential:
    half = embed_dims // 2
    return nn.Sequential(
        _conv(in_channels, half, 2, norm_cfg),
        _conv(half, half, 1, norm_cfg),
        _conv(half, half, 1, norm_cfg),
        _conv(half, embed_dims, 2, norm_cfg, act=False),
    )
