"""Swin Transformer (Liu et al., ICCV 2021) with any attention."""

from functools import partial
from itertools import pairwise
from typing import Sequence, Union

from mmengine.model import BaseModule, ModuleList
from mmengine.registry import MODELS
from torch import Tensor, nn

from ..layers import AttnCfgs, tokens_to_map
from .hierarchical import HierarchicalBackbone
from .patch_embed import PatchConv, PatchEmbed, pad_to_multiple
from .transformer_block import TransformerBlock

# Section 3.3 of the paper; stochastic depth of the ImageNet-1K recipes.
ARCHITECTURES = {
    't': dict(embed_dims=(96, 192, 384, 768), depths=(2, 2, 6, 2), drop_path_rate=0.2),
    's': dict(embed_dims=(96, 192, 384, 768), depths=(2, 2, 18, 2), drop_path_rate=0.3),
    'b': dict(
        embed_dims=(128, 256, 512, 1024),
        depths=(2, 2, 18, 2),
        num_heads=(4, 8, 16, 32),
        drop_path_rate=0.5,
    ),
}


class PatchMerging(BaseModule):
    """Patch merging: channels of 2 x 2 neighbours, LayerNorm, linear layer.

    A map of odd size is padded with zeros, right and bottom. Neighbours are ordered column by
    column, as in the release.
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * in_channels)
        self.reduction = nn.Linear(4 * in_channels, out_channels, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Merge (B, C, H, W) to (B, out_channels, H / 2, W / 2), rounded up."""
        x = pad_to_multiple(x, 2).permute(0, 2, 3, 1)
        x = x.unflatten(2, (-1, 2)).unflatten(1, (-1, 2))  # [B, H / 2, 2, W / 2, 2, C]
        x = x.permute(0, 1, 3, 4, 2, 5).flatten(3)  # [B, H / 2, W / 2, 4 C]
        reduced = self.reduction(self.norm(x))
        return tokens_to_map(reduced.flatten(1, 2), x.shape[1:3])


@MODELS.register_module()
class Swin(HierarchicalBackbone):
    """Swin Transformer (Liu et al., ICCV 2021) with any attention.

    With ``WindowAttention``, the default, outputs equal those of ``SwinTransformer`` of
    MMDetection, MMSegmentation and MMPretrain on maps that are longer than the window. These pad a
    map to whole windows before they shift it. timm and transformers shift first, so outputs equal
    theirs only where windows divide every map. ``convert(..., source='swin')`` renames the weights
    of the release, of timm, of OpenMMLab and of transformers.
    Another attention replaces windows, shift and bias, as in the first two stages of the models of
    table 8 of the RALA paper.

    Args:
        arch: ``'t'`` or ``'tiny'``, ``'s'`` or ``'small'``, ``'b'`` or ``'base'``, or a dict with
            ``embed_dims`` and ``depths`` and optionally ``num_heads``, ``mlp_ratios`` and
            ``drop_path_rate``.
        attn_cfg: see :class:`Backbone`. Every second block provides ``shift=True`` to windows.
        window_size: side of the windows.
        in_channels: channels of the image.
        ffn: feed-forward layers of all stages: ``'mlp'``, or ``'mix'`` with a depth-wise
            convolution; or a list of four.
        out_norm: LayerNorm over the channels of every output.
        kwargs: options of :class:`HierarchicalBackbone`.

    Raises:
        ValueError: ``ffn`` is unknown, or a list of another length.

    Example:
        >>> import torch
        >>> attn_cfg = ['RALA', 'RALA', 'WindowAttention', 'WindowAttention']
        >>> model = Swin('t', attn_cfg=attn_cfg).eval()
        >>> [tuple(f.shape) for f in model(torch.randn(1, 3, 64, 96))]
        [(1, 96, 16, 24), (1, 192, 8, 12), (1, 384, 4, 6), (1, 768, 2, 3)]
    """

    architectures = ARCHITECTURES
    arch_sizes = dict(tiny='t', small='s', base='b')
    arch_defaults = dict(num_heads=(3, 6, 12, 24), mlp_ratios=4, drop_path_rate=0.1)

    def __init__(
        self,
        arch: Union[str, dict] = 't',
        attn_cfg: AttnCfgs = 'WindowAttention',
        window_size: int = 7,
        in_channels: int = 3,
        ffn: Union[str, Sequence[str]] = 'mlp',
        out_norm: bool = True,
        **kwargs,
    ) -> None:
        super().__init__(arch, attn_cfg, **kwargs)
        ffns = [ffn] * self.num_stages if isinstance(ffn, str) else ffn
        if not isinstance(ffns, (list, tuple)) or len(ffns) != self.num_stages:
            raise ValueError(
                f'ffn must be a name, or a list of {self.num_stages}: one per stage; got {ffn!r}'
            )
        dims = self.arch['embed_dims'][: self.num_built]
        self.patch_embed = PatchEmbed(PatchConv(in_channels, dims[0], 4))
        self.merges = ModuleList(PatchMerging(*pair) for pair in pairwise(dims))
        self.stages = ModuleList()
        block = partial(TransformerBlock, eps=1e-5, window_size=window_size)
        for i in range(self.num_built):
            self.build_stage(i, block, odd_block_options=dict(shift=True), ffn=ffns[i])
        self.finish(norm_eps=1e-5 if out_norm else None)

    def downsample_layer(self, i: int) -> nn.Module:
        return self.merges[i - 1] if i else self.patch_embed
