"""Softmax-linear attention (Slinear) of the random walk paper as a layer."""

from typing import Optional, Tuple

import torch
from mmengine.registry import MODELS
from torch import Tensor

from .attention_info import AttentionInfo
from .random_walk import RandomWalkAttention
from .token_layout import TokenLayout


@MODELS.register_module()
class SlinearAttention(RandomWalkAttention):
    """Softmax-linear attention (Slinear) of "Improving Vision Attention with Random Walk Graph
    Kernel", linear in the number of tokens, without anchors::

        A = softmax_channels(Q) softmax_tokens(K)^T,    out = A v

    It is the paper's baseline of one step; further steps walk on the graph of A (figure 3)::

        out = (1 - l) / (1 - l^n) sum_{i=1..n} l^(i-1) A^i v

    The channels take the place of the anchors: one step equals :class:`EfficientAttention`.

    Args:
        steps: number of steps n, or None for walks of unlimited length.
        kwargs: options of :class:`RandomWalkAttention`.

    Example:
        >>> attn = SlinearAttention(embed_dims=64, num_heads=2, steps=2)
        >>> attn(torch.randn(2, 12 * 20, 64), hw_shape=(12, 20)).shape
        torch.Size([2, 240, 64])
    """

    info = AttentionInfo(
        formula='A v, A = softmax_channels(q) softmax_tokens(k)^T; or a walk of more steps on A',
        time='O(N d^2 + d^3)',
        memory='O(N d + d^2)',
        source='"Improving vision attention with random walk graph kernel"',
        use='baseline of RWGKA without anchors; steps=1, 2 or None for any length',
    )

    def __init__(self, embed_dims: int, num_heads: int, steps: Optional[int] = 1, **kwargs) -> None:
        super().__init__(embed_dims, num_heads, steps=steps, **kwargs)

    def anchors(self, q: Tensor, k: Tensor, layout: TokenLayout) -> Tuple[Tensor, Tensor]:
        channels = torch.eye(self.head_dim, dtype=q.dtype, device=q.device)
        channels = channels.expand(self.num_heads, -1, -1)
        return channels, channels
