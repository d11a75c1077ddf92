"""Efficient attention as a layer."""

from mmengine.registry import MODELS

from .attention_info import AttentionCard
from .linear import LinearAttention


@MODELS.register_module()
class EfficientAttention(LinearAttention):
    """Efficient attention (Shen et al., "Efficient Attention: Attention with Linear Complexities",
    WACV 2021): linear in the number of tokens::

        out_i = softmax_channels(q_i)^T (sum_j softmax_tokens(k)_j v_j^T)

    No normaliser is needed: the weights of the values sum to 1. With as many anchors as channels
    it is the one-step walk (Slinear) of the random walk paper whose anchors are the channels.

    Args:
        embed_dims, num_heads: channels and heads.
        others: see :class:`BaseAttention`.

    Raises:
        ValueError: see :class:`BaseAttention`.

    Example:
        >>> import torch
        >>> attn = EfficientAttention(embed_dims=64, num_heads=2)
        >>> attn(torch.randn(2, 12 * 20, 64), hw_shape=(12, 20)).shape
        torch.Size([2, 240, 64])
    """

    card = AttentionCard(
        formula='softmax_channels(q_i) . sum_j softmax_tokens(k)_j v_j^T',
        time='O(N d^2)',
        memory='O(N d)',
        source='Shen et al., WACV 2021',
        use='no parameters, no normaliser to divide by; each channel of k is a global map',
    )

    def __init__(self, embed_dims: int, num_heads: int, **kwargs) -> None:
        # The normaliser is 1, and 0 where all keys are padding: this eps keeps both.
        super().__init__(embed_dims, num_heads, 'EfficientFeatures', eps=1e-12, **kwargs)
