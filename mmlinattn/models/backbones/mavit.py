"""MAViT, the backbone of "Rectifying Magnitude Neglect in Linear Attention" (ICCV 2025)."""

from typing import Union

from mmengine.registry import MODELS

from ..layers import AttnCfgs
from .ravlt import RAVLT

RELEASED_ATTENTIONS = ('MALA', 'MALA', 'SoftmaxAttention', 'SoftmaxAttention')


@MODELS.register_module()
class MAViT(RAVLT):
    """Vision transformer with magnitude-aware linear attention (Fan et al., ICCV 2025).

    Trunk, sizes and names of the weights are those of :class:`RAVLT`. The released models use MALA
    in the first two stages and softmax attention in the last two; this is the default.

    Args:
        arch: ``'tiny'``, ``'small'``, ``'base'``, ``'large'`` or a dict, as of :class:`RAVLT`.
        attn_cfg, kwargs: options of :class:`RAVLT`.

    Example:
        >>> import torch
        >>> model = MAViT('tiny', norm_cfg=dict(type='BN')).eval()
        >>> [tuple(f.shape) for f in model(torch.randn(1, 3, 64, 96))]
        [(1, 64, 16, 24), (1, 128, 8, 12), (1, 256, 4, 6), (1, 512, 2, 3)]
    """

    def __init__(
        self, arch: Union[str, dict] = 'tiny', attn_cfg: AttnCfgs = RELEASED_ATTENTIONS, **kwargs
    ) -> None:
        super().__init__(arch, attn_cfg, **kwargs)
