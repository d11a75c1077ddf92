"""MLLA (MILA), the backbone of "Demystify Mamba in Vision" (NeurIPS 2024)."""

from typing import Callable, Optional, Tuple, Union

import torch.nn.functional as F
from mmcv.cnn import ConvModule
from mmcv.cnn.bricks import DropPath
from mmengine.model import BaseModule, ModuleList
from mmengine.registry import MODELS
from torch import Tensor, nn

from ..layers import MLP, AttnCfg, AttnCfgs, add_branch, add_depthwise, build_attention
from ..layers.token_layout import map_to_tokens, tokens_to_map
from .hierarchical import HierarchicalBackbone
from .patch_embed import biased_conv, pad_to_multiple

# Sizes and stochastic depth of the released ImageNet models.
ARCHITECTURES = {
    'tiny': dict(
        embed_dims=(64, 128, 256, 512), depths=(2, 4, 8, 4), num_heads=(2, 4, 8, 16),
        drop_path_rate=0.2,
    ),
    'small': dict(
        embed_dims=(64, 128, 256, 512), depths=(3, 6, 21, 6), num_heads=(2, 4, 8, 16),
        drop_path_rate=0.3,
    ),
    'base': dict(
        embed_dims=(96, 192, 384, 768), depths=(3, 6, 21, 6), num_heads=(3, 6, 12, 24),
        drop_path_rate=0.5,
    ),
}  # fmt: skip


class MLLABlock(BaseModule):
    """Block of MLLA: Mamba's block with an attention in place of the state space model.

    With the layer norms n::

        x = x + dwconv(x)
        x = x + out_proj(attn(silu(dwconv(in_proj(n(x))))) * silu(act_proj(n(x))))
        x = x + dwconv(x)
        x = x + mlp(n(x))

    Its arguments are those of :class:`TransformerBlock`.
    """

    def __init__(
        self, embed_dims: int, num_heads: int, mlp_ratio: float, attn_cfg: AttnCfg, drop_path: float
    ) -> None:
        super().__init__()
        self.cpe1, self.dwconv, self.cpe2 = (
            nn.Conv2d(embed_dims, embed_dims, 3, padding=1, groups=embed_dims) for _ in range(3)
        )
        self.norm1, self.norm2 = nn.LayerNorm(embed_dims), nn.LayerNorm(embed_dims)
        self.in_proj, self.act_proj, self.out_proj = (
            nn.Linear(embed_dims, embed_dims) for _ in range(3)
        )
        self.attn = build_attention(attn_cfg, embed_dims, num_heads)
        self.ffn = MLP(embed_dims, int(mlp_ratio * embed_dims))
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        """Apply the block to tokens (B, N, C)."""
        x = add_depthwise(x, self.cpe1, hw_shape)
        x = add_branch(x, self._attend(self.norm1(x), hw_shape), self.drop_path)
        x = add_depthwise(x, self.cpe2, hw_shape)
        return add_branch(x, self.ffn(self.norm2(x)), self.drop_path)

    def _attend(self, x: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        gate = F.silu(self.act_proj(x))
        x = self.dwconv(tokens_to_map(self.in_proj(x), hw_shape))
        return self.out_proj(self.attn(F.silu(map_to_tokens(x)), hw_shape) * gate)


class MLLAStem(BaseModule):
    """Stem of MLLA: 3x3 convolutions, two of them with stride 2; the image is padded with zeros to
    multiples of 4. ``residual`` adds the input of the second and third to their output.
    """

    def __init__(self, in_channels: int, embed_dims: int, norm_cfg: dict, residual: bool) -> None:
        super().__init__()
        self.residual = residual
        half, norm = embed_dims // 2, dict(norm_cfg=norm_cfg, bias=False)
        act_cfg = None if residual else dict(type='ReLU')
        self.conv1 = ConvModule(in_channels, half, 3, stride=2, padding=1, **norm)
        self.conv2 = nn.Sequential(
            ConvModule(half, half, 3, padding=1, **norm),
            ConvModule(half, half, 3, padding=1, act_cfg=act_cfg, **norm),
        )
        self.conv3 = nn.Sequential(
            ConvModule(half, 4 * embed_dims, 3, stride=2, padding=1, **norm),
            ConvModule(4 * embed_dims, embed_dims, 1, act_cfg=None, **norm),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Embed (B, C, H, W) as (B, embed_dims, H / 4, W / 4), rounded up."""
        x = self.conv1(pad_to_multiple(x, 4))
        return self.conv3(self.conv2(x) + x if self.residual else self.conv2(x))


class MLLADownsample(nn.Sequential):
    """Downsampling of MLLA: 1x1 to four times the channels of the next stage, depth-wise 3x3 with
    stride 2, 1x1; maps are padded with zeros to even sizes.
    """

    def __init__(self, in_channels: int, out_channels: int, norm_cfg: dict) -> None:
        wide = 4 * out_channels
        super().__init__(
            ConvModule(in_channels, wide, 1),
            ConvModule(wide, wide, 3, stride=2, padding=1, groups=wide),
            biased_conv(wide, out_channels, 1, norm_cfg=norm_cfg, act_cfg=None),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C_in, H, W) to (B, C_out, H / 2, W / 2), rounded up."""
        return super().forward(pad_to_multiple(x, 2))


@MODELS.register_module()
class MLLA(HierarchicalBackbone):
    """Mamba-like linear attention, renamed MILA (Han et al., "Demystify Mamba in Vision: A Linear
    Attention Perspective", NeurIPS 2024), with any attention.

    With ``MLLAAttention``, the default, it computes the same as the release, whose weights
    ``convert(..., source='mlla')`` renames.

    Args:
        arch: ``'tiny'``, ``'small'``, ``'base'``, or a dict with ``embed_dims``, ``depths``,
            ``num_heads`` and optionally ``mlp_ratios`` and ``drop_path_rate``.
        in_channels: channels of the image.
        out_norm: LayerNorm over the channels of every output.
        norm_cfg: norm of stem and downsampling, BN as released.
        attn_cfg, kwargs: options of :class:`HierarchicalBackbone`.

    Raises:
        ValueError: the channels of the first stage are odd, or do not suit the attention.

    Example:
        >>> import torch
        >>> model = MLLA('tiny').eval()
        >>> [tuple(f.shape) for f in model(torch.randn(1, 3, 64, 96))]
        [(1, 64, 16, 24), (1, 128, 8, 12), (1, 256, 4, 6), (1, 512, 2, 3)]
    """

    architectures = ARCHITECTURES
    arch_required = ('embed_dims', 'depths', 'num_heads')
    arch_defaults = dict(mlp_ratios=4, drop_path_rate=0.1)
    block: Callable[..., nn.Module] = MLLABlock
    residual_stem = True

    def __init__(
        self,
        arch: Union[str, dict] = 'tiny',
        attn_cfg: AttnCfgs = 'MLLAAttention',
        in_channels: int = 3,
        out_norm: bool = True,
        norm_cfg: Optional[dict] = None,
        **kwargs,
    ) -> None:
        super().__init__(arch, attn_cfg, **kwargs)
        norm_cfg = norm_cfg or dict(type='BN')
        dims = self.arch['embed_dims']
        if dims[0] % 2:
            raise ValueError(
                f"arch['embed_dims'][0] must be even, since the stem halves it, got {dims[0]}"
            )
        self.stem = MLLAStem(in_channels, dims[0], norm_cfg, self.residual_stem)
        self.stages, self.downsamples = ModuleList(), ModuleList()
        for i in range(self.num_built):
            if i:
                self.downsamples.append(MLLADownsample(dims[i - 1], dims[i], norm_cfg))
            self.build_stage(i, self.block)
        self.finish(norm_eps=1e-5 if out_norm else None)

    def downsample_layer(self, i: int) -> nn.Module:
        return self.downsamples[i - 1] if i else self.stem
