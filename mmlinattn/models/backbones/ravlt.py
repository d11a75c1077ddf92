"""RAVLT, the backbone of "Breaking the Low-Rank Dilemma of Linear Attention" (CVPR 2025)."""

from functools import partial
from typing import List, Optional, Union

from mmengine.model import ModuleList, trunc_normal_init
from mmengine.registry import MODELS
from torch import nn

from ..layers import AttnCfgs
from .base import Part
from .hierarchical import HierarchicalBackbone
from .patch_embed import biased_conv
from .transformer_block import TransformerBlock

# Table 1 of the paper; layer scale and stochastic depth of the released models.
ARCHITECTURES = {
    'tiny': dict(
        embed_dims=(64, 128, 256, 512), depths=(2, 2, 6, 2), num_heads=(1, 2, 4, 8),
        drop_path_rate=0.1,
    ),
    'small': dict(
        embed_dims=(64, 128, 320, 512), depths=(3, 5, 9, 3), num_heads=(1, 2, 5, 8),
        drop_path_rate=0.15,
    ),
    'base': dict(
        embed_dims=(96, 192, 384, 512), depths=(4, 6, 12, 6), num_heads=(1, 2, 6, 8),
        drop_path_rate=0.4, layer_scale_init=(1.0, 1.0, 1e-6, 1e-6),
    ),
    'large': dict(
        embed_dims=(96, 192, 448, 640), depths=(4, 7, 19, 8), num_heads=(1, 2, 7, 10),
        drop_path_rate=0.55, layer_scale_init=1e-6,
    ),
}  # fmt: skip
RELEASED_ATTENTIONS = ('RALA', 'RALA', 'SoftmaxAttention', 'SoftmaxAttention')
# The attention's options are those of the released models: SoftmaxAttention and its subclasses take
# them, RALA and MALA have them as defaults, and all other attentions keep their own defaults.
_block = partial(TransformerBlock, ffn='residual_conv', rotary=True, lepe=5, gate='proj')


@MODELS.register_module()
class RAVLT(HierarchicalBackbone):
    """Vision transformer with rank-augmented linear attention (Fan et al., CVPR 2025, table 1).

    The released models use RALA in the first two stages. In the last two they use softmax attention
    with the same rotary position, local position and gate. This is the default, and released
    weights need it. The paper describes RALA in all four stages: ``attn_cfg='RALA'``. Both have the
    same parameters.

    Args:
        arch: ``'tiny'``, ``'small'``, ``'base'``, ``'large'``, or a dict with ``embed_dims``,
            ``depths``, ``num_heads`` and optionally ``mlp_ratios``, ``drop_path_rate`` and
            ``layer_scale_init``.
        attn_cfg: see :class:`Backbone`. The blocks provide ``rotary=True``, ``lepe=5`` and
            ``gate='proj'``, as in the released models, to ``SoftmaxAttention`` and its subclasses.
        in_channels: channels of the image.
        cpe: conditional position encoding in every block; False is a row of table 9.
        out_norm: LayerNorm over the channels of every output, for dense prediction; the released
            classifiers have none.
        norm_cfg: norm of stem and downsampling, SyncBN as released.
        kwargs: options of :class:`HierarchicalBackbone`.

    Example:
        >>> import torch
        >>> model = RAVLT('tiny', norm_cfg=dict(type='BN')).eval()
        >>> [tuple(f.shape) for f in model(torch.randn(1, 3, 64, 96))]
        [(1, 64, 16, 24), (1, 128, 8, 12), (1, 256, 4, 6), (1, 512, 2, 3)]
    """

    architectures = ARCHITECTURES
    arch_required = ('embed_dims', 'depths', 'num_heads')
    arch_defaults = dict(mlp_ratios=3.5, drop_path_rate=0.1, layer_scale_init=1.0)

    def __init__(
        self,
        arch: Union[str, dict] = 'tiny',
        attn_cfg: AttnCfgs = RELEASED_ATTENTIONS,
        in_channels: int = 3,
        cpe: bool = True,
        out_norm: bool = True,
        norm_cfg: Optional[dict] = None,
        **kwargs,
    ) -> None:
        super().__init__(arch, attn_cfg, **kwargs)
        norm_cfg = norm_cfg or dict(type='SyncBN')
        dims = self.arch['embed_dims']
        self.stem = _stem(in_channels, dims[0], norm_cfg)
        self.stages, self.downsamples = ModuleList(), nn.ModuleList()
        for i in range(self.num_built):
            if i:
                self.downsamples.append(_conv(dims[i - 1], dims[i], 2, norm_cfg, act=False))
            scale = self.arch['layer_scale_init'][i]
            self.build_stage(i, _block, layer_scale_init=scale, cpe=cpe)
        self.finish(norm_eps=1e-6 if out_norm else None)

    def downsample_layer(self, i: int) -> nn.Module:
        return self.downsamples[i - 1] if i else self.stem

    def stage_parts(self, i: int) -> List[Part]:
        # Output norms are never frozen, since the released classifiers have no weights for them.
        return [self.downsample_layer(i), self.stages[i]]

    def init_layer(self, layer: Union[nn.Conv2d, nn.Linear]) -> None:
        """Initialise a layer: truncated normal (std 0.02), zero biases of linear layers.

        Biases of convolutions are random, those of the release 0: black images are tokens of zeros
        then, and each layer norm multiplies their gradients by up to 1,000.
        """
        trunc_normal_init(layer, std=0.02, bias=0)
        if isinstance(layer, nn.Conv2d) and layer.bias is not None:
            nn.init.trunc_normal_(layer.bias, std=0.02)


def _conv(in_channels: int, out_channels: int, stride: int, norm_cfg: dict, act: bool = True):
    act_cfg = dict(type='GELU') if act else None
    return biased_conv(
        in_channels, out_channels, 3, stride=stride, padding=1, norm_cfg=norm_cfg,
        act_cfg=act_cfg, inplace=False,
    )  # fmt: skip


def _stem(in_channels: int, embed_dims: int, norm_cfg: dict) -> nn.Sequential:
    half = embed_dims // 2
    return nn.Sequential(
        _conv(in_channels, half, 2, norm_cfg),
        _conv(half, half, 1, norm_cfg),
        _conv(half, half, 1, norm_cfg),
        _conv(half, embed_dims, 2, norm_cfg, act=False),
    )
