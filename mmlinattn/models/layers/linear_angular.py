"""Linear angular attention (You et al., CVPR 2023) as a layer."""

import math

import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor

from ...ops import linear_attention, unnormalised_attention
from ...ops.common.numerics import accumulation_dtype, no_autocast
from .base import BaseAttention, TokenLayout
from .feature_maps import l2_normalize

FORMS = ('released', 'paper')


@MODELS.register_module()
class LinearAngularAttention(BaseAttention):
    """Linear angular attention, "Castling-ViT" (You et al., CVPR 2023), linear in the number of
    tokens.

    With unit vectors q^, k^ the first two terms of the angular kernel ``1 - angle(q, k) / pi`` are
    ``1/2 + q^ . k^ / pi``. Paper and released code differ. The code uses the value of the token
    itself for the constant term. It divides by the norm of the result, not by the sum of the
    weights::

        released:  u_i = v_i / 2 + q^_i^T (sum_j k^_j v_j^T) / pi,    out_i = u_i / |u_i|
        paper:     out_i = sum_j w_ij v_j / sum_j w_ij,    w_ij = 1/2 + q^_i . k^_j / pi

    Both add a depth-wise convolution of the values. In the released code it is 1D with 9 taps,
    shared by the channels of a head, and crosses the ends of rows. Here it is 3x3 on the map.

    Args:
        form: ``'released'`` or ``'paper'``.
        embed_dims, num_heads, lepe, kwargs: options of :class:`BaseAttention`; ``backend`` is
            that of ``form='paper'``.

    Raises:
        ValueError: ``form`` is unknown.

    Example:
        >>> import torch
        >>> attn = LinearAngularAttention(embed_dims=64, num_heads=2)
        >>> attn(torch.randn(2, 12 * 20, 64), hw_shape=(12, 20)).shape
        torch.Size([2, 240, 64])
    """

    needs_map = True

    def __init__(
        self, embed_dims: int, num_heads: int, form: str = 'released', lepe: int = 3, **kwargs
    ) -> None:
        super().__init__(embed_dims, num_heads, lepe=lepe, **kwargs)
        if form not in FORMS:
            raise ValueError(f'form must be one of {FORMS}, got {form!r}')
        self.form = form

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout) -> Tensor:
        dtype, mask = accumulation_dtype(v.dtype), layout.key_padding_mask
        with no_autocast(q):
            q, k = (l2_normalize(x.to(dtype)) for x in (q, k))
            if self.form == 'paper':  # d + 1 features, signed, but with positive products
                q, k = (
                    F.pad(x * math.pi**-0.5, (1, 0), value=0.5**0.5).to(v.dtype) for x in (q, k)
                )
                return linear_attention(q, k, v, key_padding_mask=mask, backend=self.backend)
            values = v.to(dtype)
            out = unnormalised_attention(q, k, values, key_padding_mask=mask) / math.pi
            half_values = values / 2
            if mask is not None:  # a query without any key yields 0
                half_values = half_values.masked_fill(mask.all(-1)[:, None, None, None], 0)
            return l2_normalize(out + half_values).to(v.dtype)
