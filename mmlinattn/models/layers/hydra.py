"""Hydra attention (Bolya et al., ECCVW 2022) as a layer."""

from mmengine.registry import MODELS
from torch import Tensor

from ...ops.common.numerics import accumulation_dtype, no_autocast, zero_padding
from .base import BaseAttention, TokenLayout
from .feature_maps import l2_normalize


@MODELS.register_module()
class HydraAttention(BaseAttention):
    """Hydra attention, "Hydra Attention: Efficient Attention with Many Heads" (Bolya et al., ECCVW
    2022), linear in the number of tokens and of channels::

        out_i = q_i / |q_i| * sum_j k_j / |k_j| * v_j

    It has as many heads as channels, so that products are per channel. Norms are over all channels.
    ``num_heads`` only splits the channels for rotary position.

    Args:
        embed_dims, num_heads, kwargs: options of :class:`BaseAttention`; ``backend`` is ``'auto'``.

    Example:
        >>> import torch
        >>> attn = HydraAttention(embed_dims=64, num_heads=2)
        >>> attn(torch.randn(2, 12 * 20, 64), hw_shape=(12, 20)).shape
        torch.Size([2, 240, 64])
    """

    backends = ('auto',)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout) -> Tensor:
        dtype, mask = accumulation_dtype(v.dtype), layout.key_padding_mask
        with no_autocast(q):
            # Norms over heads and their channels.
            q, k = (l2_normalize(x.to(dtype), (1, 3)) for x in (q, k))
            summary = (zero_padding(k, mask) * v).sum(2, keepdim=True)  # [B, H, 1, d]
            return (q * summary).to(v.dtype)
