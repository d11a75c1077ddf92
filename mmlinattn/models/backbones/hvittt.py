"""H-ViT³, the backbone of "ViT³: Unlocking Test-Time Training in Vision" (CVPR 2026)."""

from functools import partial
from typing import Union

from mmengine.registry import MODELS

from ..layers import AttnCfgs
from .mlla import MLLA
from .transformer_block import TransformerBlock

# Sizes and stochastic depth of the released ImageNet models.
ARCHITECTURES = {
    'tiny': dict(
        embed_dims=(64, 128, 320, 512), depths=(1, 3, 9, 4), num_heads=(2, 4, 10, 16),
        drop_path_rate=0.2,
    ),
    'small': dict(
        embed_dims=(64, 128, 320, 512), depths=(2, 6, 18, 8), num_heads=(2, 4, 10, 16),
        drop_path_rate=0.4,
    ),
    'base': dict(
        embed_dims=(96, 192, 448, 640), depths=(2, 6, 18, 8), num_heads=(3, 6, 14, 20),
        drop_path_rate=0.6,
    ),
}  # fmt: skip


@MODELS.register_module()
class HViTTT(MLLA):
    """H-ViT³, hierarchical vision test-time training (Han et al., CVPR 2026), with any attention.

    Stem without a residual connection, then :class:`TransformerBlock` with conditional position
    encoding and :class:`ResidualMixFFN`; downsampling and norms of the outputs are MLLA's. With
    ``TTTAttention``, the default, it is linear in the number of tokens in all stages. It computes
    the same as the release, whose weights ``convert(..., source='vittt')`` renames. Errors
    are those of :class:`MLLA`.

    Args:
        arch: ``'tiny'``, ``'small'``, ``'base'``, or a dict with ``embed_dims``, ``depths``,
            ``num_heads`` and optionally ``mlp_ratios`` and ``drop_path_rate``.
        attn_cfg, kwargs: options of :class:`MLLA`.

    Example:
        >>> import torch
        >>> model = HViTTT('tiny').eval()
        >>> [tuple(f.shape) for f in model(torch.randn(1, 3, 64, 96))]
        [(1, 64, 16, 24), (1, 128, 8, 12), (1, 320, 4, 6), (1, 512, 2, 3)]
    """

    architectures = ARCHITECTURES
    block = staticmethod(
        partial(TransformerBlock, eps=1e-5, ffn='residual_mix', cpe=True, rotary=True)
    )
    residual_stem = False

    def __init__(
        self, arch: Union[str, dict] = 'tiny', attn_cfg: AttnCfgs = 'TTTAttention', **kwargs
    ) -> None:
        super().__init__(arch, attn_cfg, **kwargs)
