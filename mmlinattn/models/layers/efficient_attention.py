"""Efficient attention (Shen et al., WACV 2021) as a layer."""

from mmengine.registry import MODELS

from .linear import LinearAttention


@MODELS.register_module()
class EfficientAttention(LinearAttention):
    """Efficient attention, "Efficient Attention: Attention with Linear Complexities" (Shen et al.,
    WACV 2021), linear in the number of tokens::

        out_i = softmax_channels(q_i)^T (sum_j softmax_tokens(k)_j v_j^T)

    No normaliser is needed, since the weights of the values sum to 1. The one-step
    :class:`SlinearAttention` of the random walk paper equals it.

    Args:
        embed_dims, num_heads, kwargs: options of :class:`BaseAttention`.

    Example:
        >>> import torch
        >>> attn = EfficientAttention(embed_dims=64, num_heads=2)
        >>> attn(torch.randn(2, 12 * 20, 64), hw_shape=(12, 20)).shape
        torch.Size([2, 240, 64])
    """

    def __init__(self, embed_dims: int, num_heads: int, **kwargs) -> None:
        # The normaliser is 1, or 0 if all keys are padding; a small eps changes neither.
        super().__init__(embed_dims, num_heads, 'EfficientFeatures', eps=1e-12, **kwargs)
