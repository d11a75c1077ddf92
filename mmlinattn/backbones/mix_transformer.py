"""MiT, the backbone of SegFormer, with any attention."""

import math
from typing import List, Optional, Sequence, Tuple, Union

import torch
from mmcv.cnn.bricks import DropPath
from mmengine.model import BaseModule, normal_init, trunc_normal_init
from mmengine.registry import MODELS
from torch import Tensor, nn

from ..layers import (
    EfficientSoftmaxAttention,
    MixFFN,
    build_attention,
    map_to_tokens,
    tokens_to_map,
)
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

# Table 6 of the SegFormer paper, and the released code.
ARCHITECTURES = {
    'b0': dict(embed_dims=(32, 64, 160, 256), depths=(2, 2, 2, 2)),
    'b1': dict(embed_dims=(64, 128, 320, 512), depths=(2, 2, 2, 2)),
    'b2': dict(embed_dims=(64, 128, 320, 512), depths=(3, 4, 6, 3)),
    'b3': dict(embed_dims=(64, 128, 320, 512), depths=(3, 4, 18, 3)),
    'b4': dict(embed_dims=(64, 128, 320, 512), depths=(3, 8, 27, 3)),
    'b5': dict(embed_dims=(64, 128, 320, 512), depths=(3, 6, 40, 3)),
}
ARCH_DEFAULTS = dict(
    num_heads=(1, 2, 5, 8), mlp_ratios=4, sr_ratios=(8, 4, 2, 1), drop_path_rate=0.1
)


class OverlapPatchEmbed(BaseModule):
    """A strided convolution with overlapping windows, then LayerNorm."""

    def __init__(self, in_channels: int, embed_dims: int, kernel_size: int, stride: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(
            in_channels, embed_dims, kernel_size, stride=stride, padding=kernel_size // 2
        )
        self.norm = nn.LayerNorm(embed_dims, eps=1e-6)

    def forward(self, x: Tensor) -> Tuple[Tensor, Tuple[int, int]]:
        """(B, C, H, W) to tokens (B, N, embed_dims) and their (H, W)."""
        x = self.proj(x)
        return self.norm(map_to_tokens(x)), tuple(x.shape[-2:])


class MixTransformerBlock(BaseModule):
    """Attention and feed-forward layer, each behind a norm and with its residual.

    Args:
        embed_dims, num_heads: channels and heads.
        mlp_ratio: hidden channels of the feed-forward layer over ``embed_dims``.
        attn_cfg: the attention, see :func:`mmlinattn.layers.build_attention`.
        drop_path: rate of stochastic depth.
        with_cp: recompute activations in the backward pass instead of keeping them.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        mlp_ratio: float,
        attn_cfg: AttnCfg,
        drop_path: float = 0.0,
        with_cp: bool = False,
    ) -> None:
        super().__init__()
        self.with_cp = with_cp
        self.norm1 = nn.LayerNorm(embed_dims, eps=1e-6)
        self.attn = build_attention(attn_cfg, embed_dims, num_heads)
        self.norm2 = nn.LayerNorm(embed_dims, eps=1e-6)
        self.ffn = MixFFN(embed_dims, int(mlp_ratio * embed_dims))
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        """(B, N, C) to (B, N, C)."""
        return run(self._forward, self.with_cp, x, hw_shape)

    def _forward(self, x: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        x = x + self.drop_path(self.attn(self.norm1(x), hw_shape))
        return x + self.drop_path(self.ffn(self.norm2(x), hw_shape))


@MODELS.register_module()
class MixTransformer(BaseModule):
    """Mix Transformer (MiT), the encoder of SegFormer (Xie et al., NeurIPS 2021), with any
    attention of this package.

    With its own, ``EfficientSoftmaxAttention``, outputs are those of MMSegmentation's
    ``MixVisionTransformer``; ``convert(..., source='mit')`` renames the weights of both releases.

    Args:
        arch: ``'b0'`` to ``'b5'``, or a dict with ``embed_dims`` and ``depths`` and optionally
            ``num_heads``, ``mlp_ratios``, ``sr_ratios`` (four values or one) and
            ``drop_path_rate``.
        attn_cfg: config or name of the attention of all stages, or a list of four. An
            ``EfficientSoftmaxAttention`` without ``sr_ratio`` gets that of its stage.
        in_channels: channels of the image.
        out_indices: stages to return, in 0..3; those after the last of them are not built.
        drop_path_rate: overrides the architecture's rate of stochastic depth, which rises
            linearly from 0 over the blocks.
        frozen_stages: -1 nothing, 0 the first patch embedding, k also the first k stages.
        with_cp: activation checkpointing in every block.
        init_cfg: for example ``dict(type='Pretrained', checkpoint=..., prefix='backbone.')``.

    Inputs:
        (B, in_channels, H, W) of any size.

    Returns:
        tuple of (B, C_i, ceil(H / s_i), ceil(W / s_i)), strides s = 4, 8, 16, 32, contiguous.

    Raises:
        ValueError: an unknown architecture or option value.
        KeyError: an unknown attention.

    Example:
        >>> import torch
        >>> model = MixTransformer('b0', attn_cfg=dict(type='RWGKA', num_anchors=32)).eval()
        >>> [tuple(f.shape) for f in model(torch.randn(1, 3, 64, 96))]
        [(1, 32, 16, 24), (1, 64, 8, 12), (1, 160, 4, 6), (1, 256, 2, 3)]
    """

    def __init__(
        self,
        arch: Union[str, dict] = 'b0',
        attn_cfg: Union[AttnCfg, Sequence[AttnCfg]] = 'EfficientSoftmaxAttention',
        in_channels: int = 3,
        out_indices: Sequence[int] = (0, 1, 2, 3),
        drop_path_rate: Optional[float] = None,
        frozen_stages: int = -1,
        with_cp: bool = False,
        init_cfg: Optional[Union[dict, List[dict]]] = None,
    ) -> None:
        super().__init__(init_cfg)
        self.arch = arch = architecture(
            arch,
            ARCHITECTURES,
            needed=('embed_dims', 'depths'),
            defaults=ARCH_DEFAULTS,
            per_stage=('embed_dims', 'depths', 'num_heads', 'mlp_ratios', 'sr_ratios'),
        )
        attn_cfgs = _stage_attentions(attn_cfg, arch['sr_ratios'])
        self.out_indices = check_stages(out_indices, frozen_stages)
        self.frozen_stages = frozen_stages
        rates = drop_path_rates(
            arch['drop_path_rate'] if drop_path_rate is None else drop_path_rate, arch['depths']
        )
        self.patch_embeds, self.stages, self.norms = (nn.ModuleList() for _ in range(3))
        for i, dim in enumerate(arch['embed_dims'][: max(self.out_indices) + 1]):
            kernel_size, stride = (3, 2) if i else (7, 4)
            self.patch_embeds.append(OverlapPatchEmbed(in_channels, dim, kernel_size, stride))
            self.stages.append(
                nn.ModuleList(
                    MixTransformerBlock(
                        dim,
                        arch['num_heads'][i],
                        arch['mlp_ratios'][i],
                        attn_cfgs[i],
                        drop_path=rate,
                        with_cp=with_cp,
                    )
                    for rate in rates[i]
                )
            )
            self.norms.append(nn.LayerNorm(dim, eps=1e-6))
            in_channels = dim
        # Maps and tokens are then views of the same memory.
        self.to(memory_format=torch.channels_last)
        self._freeze()

    def forward(self, x: Tensor) -> Tuple[Tensor, ...]:
        x = x.contiguous(memory_format=torch.channels_last)
        outs = []
        for i, blocks in enumerate(self.stages):
            tokens, hw_shape = self.patch_embeds[i](x)
            for block in blocks:
                tokens = block(tokens, hw_shape)
            x = tokens_to_map(self.norms[i](tokens), hw_shape)
            if i in self.out_indices:
                # MMCV's operators (RoIAlign, ...) read any map as if it were contiguous.
                outs.append(x.contiguous())
        return tuple(outs)

    def init_weights(self) -> None:
        """Linear layers truncated normal (std 0.02), convolutions normal by their fan-out, as
        released; then ``init_cfg``, if any, on top."""
        for module in own_layers(self):
            if isinstance(module, nn.Linear):
                trunc_normal_init(module, std=0.02, bias=0)
            else:
                fan_out = math.prod(module.kernel_size) * module.out_channels // module.groups
                normal_init(module, std=math.sqrt(2 / fan_out), bias=0)
        super().init_weights()

    def train(self, mode: bool = True) -> 'MixTransformer':
        super().train(mode)
        self._freeze()
        return self

    def _freeze(self) -> None:
        if self.frozen_stages >= 0:
            stages = self.frozen_stages
            freeze([*self.patch_embeds[: max(stages, 1)], *self.stages[:stages]])
            freeze(self.norms[:stages])


def _stage_attentions(
    attn_cfg: Union[AttnCfg, Sequence[AttnCfg]], sr_ratios: Sequence[int]
) -> List[dict]:
    if isinstance(attn_cfg, (str, dict)):
        attn_cfg = [attn_cfg] * NUM_STAGES
    if len(attn_cfg) != NUM_STAGES:
        raise ValueError(f'attn_cfg must be one attention or {NUM_STAGES}, got {attn_cfg!r}')
    found = []
    for attn, sr_ratio in zip(attn_cfg, sr_ratios):
        attn = dict(type=attn) if isinstance(attn, str) else dict(attn)
        kind = attn.get('type')
        kind = MODELS.get(kind) if isinstance(kind, str) else kind
        if kind is EfficientSoftmaxAttention:
            attn.setdefault('sr_ratio', sr_ratio)
        found.append(attn)
    return found
