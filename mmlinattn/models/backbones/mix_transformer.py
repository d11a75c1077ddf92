"""Mix Transformer (MiT), the backbone of SegFormer, with any attention."""

import math
from typing import List, Union

from mmengine.model import ModuleList, normal_init, trunc_normal_init
from mmengine.registry import MODELS
from torch import Tensor, nn

from ..layers import AttnCfgs
from .base import Part
from .hierarchical import HierarchicalBackbone
from .patch_embed import PatchEmbed
from .transformer_block import TransformerBlock

# Table 6 of the SegFormer paper, and the released code.
ARCHITECTURES = {
    'b0': dict(embed_dims=(32, 64, 160, 256), depths=(2, 2, 2, 2)),
    'b1': dict(embed_dims=(64, 128, 320, 512), depths=(2, 2, 2, 2)),
    'b2': dict(embed_dims=(64, 128, 320, 512), depths=(3, 4, 6, 3)),
    'b3': dict(embed_dims=(64, 128, 320, 512), depths=(3, 4, 18, 3)),
    'b4': dict(embed_dims=(64, 128, 320, 512), depths=(3, 8, 27, 3)),
    'b5': dict(embed_dims=(64, 128, 320, 512), depths=(3, 6, 40, 3)),
}


@MODELS.register_module()
class MixTransformer(HierarchicalBackbone):
    """Mix Transformer (MiT), encoder of SegFormer (Xie et al., NeurIPS 2021), with any attention.

    With ``SpatialReductionAttention``, the default, it computes the same as the release. The norms
    of patch embeddings and reduced keys have eps 1e-5, those of blocks and stages 1e-6.
    MMSegmentation's ``MixVisionTransformer`` has 1e-6 everywhere and is equal otherwise.
    ``convert(..., source='mit')`` renames the weights of both.

    Args:
        arch: ``'b0'`` to ``'b5'``, which are also ``'nano'``, ``'tiny'``, ``'small'``, ``'base'``,
            ``'large'`` and ``'huge'``, or a dict with ``embed_dims`` and ``depths`` and optionally
            ``num_heads``, ``mlp_ratios``, ``sr_ratios`` and ``drop_path_rate``.
        attn_cfg: see :class:`Backbone`. The stage provides ``sr_ratio``.
        in_channels: channels of the image.
        kwargs: options of :class:`HierarchicalBackbone`.

    Example:
        >>> import torch
        >>> model = MixTransformer('b0', attn_cfg=dict(type='RWGKA', num_anchors=32)).eval()
        >>> [tuple(f.shape) for f in model(torch.randn(1, 3, 64, 96))]
        [(1, 32, 16, 24), (1, 64, 8, 12), (1, 160, 4, 6), (1, 256, 2, 3)]
    """

    architectures = ARCHITECTURES
    arch_sizes = dict(nano='b0', tiny='b1', small='b2', base='b3', large='b4', huge='b5')
    arch_defaults = dict(
        num_heads=(1, 2, 5, 8), mlp_ratios=4, sr_ratios=(8, 4, 2, 1), drop_path_rate=0.1
    )

    def __init__(
        self,
        arch: Union[str, dict] = 'b0',
        attn_cfg: AttnCfgs = 'SpatialReductionAttention',
        in_channels: int = 3,
        **kwargs,
    ) -> None:
        super().__init__(arch, attn_cfg, **kwargs)
        self.patch_embeds, self.stages, self.norms = (ModuleList() for _ in range(3))
        for i, dim in enumerate(self.arch['embed_dims'][: self.num_built]):
            kernel_size, stride = (3, 2) if i else (7, 4)
            conv = nn.Conv2d(in_channels, dim, kernel_size, stride, kernel_size // 2)
            self.patch_embeds.append(PatchEmbed(conv))
            self.build_stage(i, TransformerBlock, ffn='mix', sr_ratio=self.arch['sr_ratios'][i])
            self.norms.append(nn.LayerNorm(dim, eps=1e-6))
            in_channels = dim
        self.finish()

    def stage_norm(self, i: int, tokens: Tensor) -> Tensor:
        return self.norms[i](tokens)

    def stage_parts(self, i: int) -> List[Part]:
        return [*super().stage_parts(i), self.norms[i]]

    def init_layer(self, layer: Union[nn.Conv2d, nn.Linear]) -> None:
        """Initialise a layer as released.

        Linear layers: truncated normal (std 0.02). Convolutions: normal by their fan-out. Biases of
        patch embeddings are random, those of the release 0: padding is a token of zeros then, and
        each layer norm multiplies its gradient by up to 1,000. Behind gates and normalised features
        it stays 0, and gradients overflow in the first step.
        """
        if isinstance(layer, nn.Linear):
            trunc_normal_init(layer, std=0.02, bias=0)
        else:
            fan_out = math.prod(layer.kernel_size) * layer.out_channels // layer.groups
            normal_init(layer, std=math.sqrt(2 / fan_out), bias=0)
            is_patch = any(layer is getattr(embed, 'proj', None) for embed in self.patch_embeds)
            if is_patch and layer.bias is not None:
                nn.init.trunc_normal_(layer.bias, std=0.02)
