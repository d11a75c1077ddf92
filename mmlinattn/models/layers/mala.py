"""Magnitude-aware linear attention (MALA) as a layer."""

from typing import Optional

from mmengine.registry import MODELS
from torch import Tensor

from ...ops import mala_attention
from ...ops.common.feature_maps import feature_map as get_feature_map
from ...utils import check_number
from .base import BaseAttention, TokenLayout


@MODELS.register_module()
class MALA(BaseAttention):
    """Magnitude-aware linear attention (Fan et al., "Rectifying Magnitude Neglect in Linear
    Attention", ICCV 2025): linear in the number of tokens.

    The weights follow the length of a query, which linear attention cancels. Position, local
    position, gate and parameters are those of :class:`RALA`.

    Args:
        feature_map: ``'elu+1'`` (the paper's), ``'relu'`` or ``'softmax'``.
        eps: added to the divisor.
        embed_dims, num_heads, rotary, lepe, gate, kwargs: options of :class:`BaseAttention`.

    Raises:
        ValueError: an option has an unknown value.

    Example:
        >>> import torch
        >>> attn = MALA(embed_dims=64, num_heads=2)
        >>> attn(torch.randn(2, 12 * 20, 64), hw_shape=(12, 20)).shape
        torch.Size([2, 240, 64])
    """

    needs_map = True
    applies_rotary = True  # the operator rotates features; z has none
    cross_values = 'keys'

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        rotary: bool = True,
        lepe: int = 5,
        gate: Optional[str] = 'proj',
        feature_map: str = 'elu+1',
        eps: float = 1e-6,
        **kwargs,
    ) -> None:
        super().__init__(embed_dims, num_heads, rotary=rotary, lepe=lepe, gate=gate, **kwargs)
        get_feature_map(feature_map)
        self.feature_map = feature_map
        self.eps = check_number('eps', eps)

    def attends_packed(self) -> bool:
        return True

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout) -> Tensor:
        return mala_attention(
            q, k, v, rotary=layout.rotary, key_padding_mask=layout.key_padding_mask, eps=self.eps,
            feature_map=self.feature_map, cross=layout.cross, packed=layout.packed,
            backend=self.backend,
        )  # fmt: skip
