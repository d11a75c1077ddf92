"""Gated feed-forward layer."""

import torch.nn.functional as F
from mmengine.model import BaseModule
from torch import Tensor, nn


class SwiGLU(BaseModule):
    """Feed-forward layer ``fc2(silu(g) v)`` with ``g, v = fc1(x)``, "GLU Variants Improve
    Transformer" (Shazeer, 2020).

    DINOv2-g and the plus sizes of DINOv3 have it. ``hidden_dims`` are the channels of g and of v.

    Example:
        >>> import torch
        >>> SwiGLU(32, 88)(torch.randn(1, 7, 32)).shape
        torch.Size([1, 7, 32])
    """

    def __init__(self, embed_dims: int, hidden_dims: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(embed_dims, 2 * hidden_dims)
        self.fc2 = nn.Linear(hidden_dims, embed_dims)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to tokens (B, N, C)."""
        gate, value = self.fc1(x).chunk(2, -1)
        return self.fc2(F.silu(gate) * value)
