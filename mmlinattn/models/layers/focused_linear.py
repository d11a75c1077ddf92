"""Focused linear attention (Han et al., ICCV 2023) as a layer."""

from mmengine.registry import MODELS

from .linear import LinearAttention


@MODELS.register_module()
class FocusedLinearAttention(LinearAttention):
    """Focused linear attention, "FLatten Transformer" (Han et al., ICCV 2023), linear in the number
    of tokens, with the feature map :class:`.FocusedFeatures`.

    A depth-wise convolution of the values is added. The released one is shared by the heads; here
    each channel has weights. The release also adds learnt positions, for one map size, to the keys:
    ``position=dict(type='LearnedKeyPosition', map_size=...)``.

    Args:
        power: p, at least 1.
        eps: added to the normaliser, a mean over the keys.
        embed_dims, num_heads, lepe, kwargs: options of :class:`BaseAttention`.

    Raises:
        ValueError: ``power`` is below 1.

    Example:
        >>> import torch
        >>> attn = FocusedLinearAttention(embed_dims=64, num_heads=2)
        >>> attn(torch.randn(2, 12 * 20, 64), hw_shape=(12, 20)).shape
        torch.Size([2, 240, 64])
    """

    needs_map = True

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        power: float = 3,
        lepe: int = 5,
        eps: float = 1e-6,
        **kwargs,
    ) -> None:
        features = dict(type='FocusedFeatures', power=power)
        super().__init__(
            embed_dims, num_heads, features, eps=eps, mean_normaliser=True, lepe=lepe, **kwargs
        )
