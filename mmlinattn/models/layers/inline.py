"""Injective linear attention (InLine) as a layer."""

from functools import partial
from typing import Callable, Dict, Optional, Tuple, Union

import torch
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor, nn

from ...ops import unnormalised_attention
from ...ops.common.numerics import accumulation_dtype, is_exporting, is_tracing, no_autocast
from .base import BaseAttention, Projected, TokenLayout
from .token_layout import local_position, neighbours

FEATURE_MAPS: Dict[str, Callable[[Tensor], Tensor]] = {
    'identity': lambda x: x,
    'relu': F.relu,
    'leaky_relu': F.leaky_relu,
    'exp': lambda x: (0.2 * x).exp(),
}


@MODELS.register_module()
class InLineAttention(BaseAttention):
    """Injective linear attention, "Bridging the Divide: Reconsidering Softmax and Linear Attention"
    (Han et al., NeurIPS 2024), linear in the number of tokens.

    Weights are made to sum to 1 by subtraction instead of division, so that two queries with the
    same weights are equal::

        out_i = sum_j w_ij v_j,    w_ij = s_ij - mean_j(s_ij) + 1 / N,
        s_ij = d^-0.5 / N phi(q_i) . phi(k_j)

    A depth-wise 3x3 convolution of the values is added. Its weights are computed for each image
    from the mean token by two grouped linear layers with GELU in between; it has no bias. Extra
    tokens (such as a class token) count in that mean and skip the convolution.

    Args:
        feature_map: phi: ``'identity'`` (the paper's), ``'relu'``, ``'leaky_relu'`` or ``'exp'``
            (of 0.2 x).
        embed_dims, num_heads, kwargs: options of :class:`BaseAttention`; ``backend`` is ``'auto'``.

    Raises:
        ValueError: ``feature_map`` is unknown.

    Example:
        >>> attn = InLineAttention(embed_dims=64, num_heads=2)
        >>> attn(torch.randn(2, 12 * 20, 64), hw_shape=(12, 20)).shape
        torch.Size([2, 240, 64])
    """

    needs_map = True
    backends = ('auto',)
    unsupported_options = ('lepe', 'gate')

    def __init__(
        self, embed_dims: int, num_heads: int, feature_map: str = 'identity', **kwargs
    ) -> None:
        super().__init__(embed_dims, num_heads, **kwargs)
        if feature_map not in FEATURE_MAPS:
            raise ValueError(f'feature_map must be one of {[*FEATURE_MAPS]}, got {feature_map!r}')
        self.feature_map = feature_map
        self.local_weights = nn.Sequential(
            nn.Conv1d(embed_dims, embed_dims, 1, groups=num_heads),
            nn.GELU(),
            nn.Conv1d(embed_dims, 9 * embed_dims, 1, groups=num_heads),
        )

    def project(self, x: Tensor, query_pos: Optional[Tensor], layout: TokenLayout) -> Projected:
        """Project x; the last result is the convolution kernel of each image, (B, C, 9)."""
        q, k, v, _ = super().project(x, query_pos, layout)
        total, count = _sum_and_count(x, layout.key_padding_mask)
        weights = self.local_weights((total / count).to(x.dtype).transpose(1, 2))
        return q, k, v, weights.unflatten(1, (-1, 9)).squeeze(-1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout) -> Tensor:
        dtype, mask = accumulation_dtype(v.dtype), layout.key_padding_mask
        phi = FEATURE_MAPS[self.feature_map]
        with no_autocast(q):
            q, k, values = phi(q.to(dtype)), phi(k.to(dtype)), v.to(dtype)
            (sum_k, count), (sum_v, _) = (_sum_and_count(x, mask) for x in (k, values))
            # The mean of the similarities is that of the similarity with the mean key.
            out = unnormalised_attention(q, k - sum_k / count, values, key_padding_mask=mask)
            return (out * self.head_dim**-0.5 / count + sum_v / count).to(v.dtype)

    def _local_and_gate(
        self, out: Tensor, v: Tensor, gate: Optional[Tensor], layout: TokenLayout
    ) -> Tensor:
        """Add the values convolved with the kernels of :meth:`project`, which ``gate`` holds."""
        assert gate is not None
        return local_position(partial(_convolve, weight=gate), v, layout) + out


def _sum_and_count(x: Tensor, mask: Optional[Tensor]) -> Tuple[Tensor, Union[int, Tensor]]:
    """Return sum (B, ..., 1, d), in at least float32, and number (at least 1) of real tokens."""
    dtype = accumulation_dtype(x.dtype)
    if mask is None:
        return x.sum(-2, keepdim=True, dtype=dtype), x.shape[-2]
    padded = mask[:, None, :, None] if x.dim() == 4 else mask[..., None]
    total = x.masked_fill(padded, 0).sum(-2, keepdim=True, dtype=dtype)
    return total, (~padded).sum(-2, keepdim=True).clamp(min=1)


def _convolve(maps: Tensor, weight: Tensor) -> Tensor:
    """Convolve maps (B, C, H, W) depth-wise with a 3x3 kernel for each image, (B, C, 9)."""
    if is_exporting():  # a convolution with B C groups would fix the batch size
        products = [m * weight[..., t, None, None] for t, m in enumerate(neighbours(maps))]
        return torch.stack(products).sum(0)
    kernels = weight.reshape(-1, 1, 3, 3)
    if not len(kernels):  # no images: torch has no convolution without groups
        return maps
    flat, padding = maps.flatten(0, 1)[None], 1
    if is_tracing():  # torch 2.11 cannot compile a view of any size that the gradient reads
        flat, padding = F.pad(flat, (1, 1, 1, 1)), 0
    return F.conv2d(flat, kernels, padding=padding, groups=len(kernels)).view(maps.shape)
