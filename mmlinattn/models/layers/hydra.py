"""Hydra attention as a layer."""

from mmengine.registry import MODELS
from torch import Tensor

from ...ops.common.numerics import accumulation_dtype, no_autocast
from .attention_info import AttentionCard
from .base import BaseAttention, TokenMap
from .feature_maps import unit


@MODELS.register_module()
class HydraAttention(BaseAttention):
    """Hydra attention (Bolya et al., "Hydra Attention: Efficient Attention with Many Heads", ECCVW
    2022): linear in the number of tokens and of channels::

        out_i = q_i / |q_i| * sum_j k_j / |k_j| * v_j

    It has as many heads as channels, which makes every product one channel's; norms are over all
    channels. ``num_heads`` only divides the channels for rotary position.

    Args:
        embed_dims, num_heads: channels and heads.
        others: see :class:`BaseAttention`; there is one way to compute it, so no ``backend``.

    Raises:
        ValueError: see :class:`BaseAttention`.

    Example:
        >>> import torch
        >>> attn = HydraAttention(embed_dims=64, num_heads=2)
        >>> attn(torch.randn(2, 12 * 20, 64), hw_shape=(12, 20)).shape
        torch.Size([2, 240, 64])
    """

    backends = ('auto',)
    card = AttentionCard(
        formula='q_i/|q_i| * sum_j k_j/|k_j| * v_j, norms over all channels',
        time='O(N d)',
        memory='O(N d)',
        source='Bolya et al., ECCVW 2022',
        use='the cheapest: nothing but one global vector; in the last layers of a ViT',
    )

    def attend(self, q: Tensor, k: Tensor, v: Tensor, tokens: TokenMap) -> Tensor:
        dtype, mask = accumulation_dtype(v.dtype), tokens.key_padding_mask
        with no_autocast(q):
            # Over heads and their channels.
            q, k = (unit(x.to(dtype), (1, 3)) for x in (q, k))
            if mask is not None:
                k = k.masked_fill(mask[:, None, :, None], 0)
            summary = (k * v).sum(2, keepdim=True)  # [B, H, 1, d]
            return (q * summary).to(v.dtype)
