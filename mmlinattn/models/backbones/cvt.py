"""CvT (Wu et al., ICCV 2021) with any attention."""

from typing import Dict, List, Optional, Union

from mmengine.model import ModuleList
from mmengine.registry import MODELS
from torch import Tensor, nn

from ..layers import AttnCfgs
from ..layers.residual import drop_path_rates
from .base import Part
from .hierarchical import HierarchicalBackbone
from .patch_embed import PatchEmbed, new_tokens
from .transformer_block import TransformerBlock

# Table 2 of the paper.
ARCHITECTURES: Dict[str, dict] = {
    '13': dict(embed_dims=(64, 192, 384), depths=(1, 2, 10)),
    '21': dict(embed_dims=(64, 192, 384), depths=(1, 4, 16)),
    'w24': dict(
        embed_dims=(192, 768, 1024), depths=(2, 2, 20), num_heads=(3, 12, 16), drop_path_rate=0.3
    ),
}


@MODELS.register_module()
class CvT(HierarchicalBackbone):
    """Convolutional vision transformer (Wu et al., ICCV 2021) with three stages and any attention.

    The attention of the paper is ``ConvProjectionAttention``; ``convert(..., source='cvt')``
    renames the weights of the release and of transformers. Positions come only from convolutions,
    such as those of this attention. With another attention, consider setting its ``lepe``.

    Args:
        arch: ``'13'`` or ``'small'``, ``'21'`` or ``'base'``, ``'w24'`` or ``'large'``, or a dict
            with ``embed_dims`` and ``depths`` and optionally ``num_heads``, ``mlp_ratios`` and
            ``drop_path_rate``. As released, the rate rises within the last stage only.
        in_channels: channels of the image.
        act: activation of the feed-forward layers: ``'quick_gelu'`` as released, or ``'gelu'`` as
            transformers uses with the same weights.
        with_cls_token: add a class token in the last stage, whose attention must support it.
        out_norm: LayerNorm over the channels of every output; the release has that of the last
            stage.
        out_type: see :class:`Backbone`; ``'cls_token'`` needs ``out_indices=(2,)``.
        attn_cfg, kwargs: options of :class:`HierarchicalBackbone`.

    Inputs:
        (B, in_channels, H, W) with H, W >= 3.

    Returns:
        tuple of contiguous maps with strides 4, 8 and 16, or (B, C_i). The first map has
        (H + 1) // 4 rows; the others halve it, rounded up.

    Example:
        >>> import torch
        >>> model = CvT('13', ['RWGKP', 'RWGKP', 'ConvProjectionAttention']).eval()
        >>> [tuple(f.shape) for f in model(torch.randn(1, 3, 64, 96))]
        [(1, 64, 16, 24), (1, 192, 8, 12), (1, 384, 4, 6)]
    """

    architectures = ARCHITECTURES
    arch_sizes = dict(small='13', base='21', large='w24')
    arch_defaults = dict(num_heads=(1, 3, 6), mlp_ratios=4, drop_path_rate=0.1)
    num_stages = 3
    has_cls_token = True

    def __init__(
        self,
        arch: Union[str, dict] = '13',
        attn_cfg: AttnCfgs = 'ConvProjectionAttention',
        in_channels: int = 3,
        act: str = 'quick_gelu',
        with_cls_token: bool = True,
        out_norm: bool = True,
        **kwargs,
    ) -> None:
        super().__init__(arch, attn_cfg, **kwargs)
        last = self.num_stages - 1
        if self.out_type == 'cls_token' and not (with_cls_token and self.out_indices == (last,)):
            raise ValueError(
                f"out_type='cls_token' needs with_cls_token=True and out_indices=({last},), got "
                f'{with_cls_token=} and out_indices={self.out_indices}'
            )
        dims = self.arch['embed_dims'][: self.num_built]
        self.patch_embeds, self.stages = ModuleList(), ModuleList()
        for i, dim in enumerate(dims):
            kernel_size, stride, padding = (3, 2, 1) if i else (7, 4, 2)
            conv = nn.Conv2d(in_channels, dim, kernel_size, stride, padding)
            self.patch_embeds.append(PatchEmbed(conv))
            self.build_stage(i, TransformerBlock, eps=1e-5, act=act)
            in_channels = dim
        self.cls_token = None
        if with_cls_token and self.num_built > last:
            self.cls_token = new_tokens(dims[last], 1)
        self.finish(norm_eps=1e-5 if out_norm else None)

    def stochastic_depth(self, rate: float) -> List[List[float]]:
        *first, last = self.arch['depths']
        return [*([0.0] * depth for depth in first), *drop_path_rates(rate, (last,))]

    def check_input(self, x: Tensor) -> None:
        super().check_input(x)
        if min(x.shape[-2:]) < 3:  # the first kernel, less its padding
            height, width = x.shape[-2:]
            raise ValueError(f'inputs must be at least 3x3 pixels, got {height}x{width}')

    def stage_parts(self, i: int) -> List[Part]:
        token = self.extra_tokens(i)
        return [*super().stage_parts(i), *([] if token is None else [token])]

    def extra_tokens(self, i: int) -> Optional[nn.Parameter]:
        return self.cls_token if i == self.num_stages - 1 else None
