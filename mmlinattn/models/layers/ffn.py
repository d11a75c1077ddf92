"""Feed-forward layers on tokens."""

from functools import partial
from typing import Callable, Dict, Sequence

import torch
import torch.nn.functional as F
from mmengine.model import BaseModule
from torch import Tensor, nn

from ...ops.common.packed import PackedShapes
from .depthwise_conv import add_depthwise
from .linear_projection import gelu_inplace_if_safe
from .token_layout import HwShape, map_to_tokens, split_images, tokens_to_map


def quick_gelu(x: Tensor) -> Tensor:
    """Compute ``x sigmoid(1.702 x)``, an approximation of GELU."""
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: Dict[str, Callable[[Tensor], Tensor]] = {
    'gelu': F.gelu,
    'quick_gelu': quick_gelu,  # CLIP
    'gelu_tanh': partial(F.gelu, approximate='tanh'),  # SigLIP
}


class MLP(BaseModule):
    """Feed-forward layer of ViT: linear, activation, linear.

    Args:
        embed_dims: channels C.
        hidden_dims: channels between the two linear layers.
        act: ``'gelu'``, ``'quick_gelu'`` or ``'gelu_tanh'``; another one is a ValueError.

    Example:
        >>> MLP(32, 128)(torch.randn(1, 7, 32)).shape
        torch.Size([1, 7, 32])
    """

    def __init__(self, embed_dims: int, hidden_dims: int, act: str = 'gelu') -> None:
        super().__init__()
        if act not in ACTIVATIONS:
            raise ValueError(f'act must be one of {tuple(ACTIVATIONS)}, got {act!r}')
        self.act = ACTIVATIONS[act]
        self.fc1 = nn.Linear(embed_dims, hidden_dims)
        self.fc2 = nn.Linear(hidden_dims, embed_dims)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to tokens (B, N, C)."""
        return self.fc2(self.act(self.fc1(x)))


class MixFFN(BaseModule):
    """Feed-forward layer of SegFormer: linear, 3x3 depth-wise convolution, GELU, linear.

    Args:
        embed_dims, hidden_dims: channels C, and channels between the two linear layers.

    Example:
        >>> MixFFN(32, 128)(torch.randn(1, 6, 32), hw_shape=(2, 3)).shape
        torch.Size([1, 6, 32])
    """

    def __init__(self, embed_dims: int, hidden_dims: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(embed_dims, hidden_dims)
        self.dwconv = nn.Conv2d(hidden_dims, hidden_dims, 3, padding=1, groups=hidden_dims)
        self.fc2 = nn.Linear(hidden_dims, embed_dims)

    def forward(self, x: Tensor, hw_shape: HwShape, num_extra_tokens: int = 0) -> Tensor:
        """Apply the layer to tokens (B, E + N, C), or packed ones (1, T, C).

        The convolution skips the E extra tokens (class token, registers), which have no position.
        """
        x = self.expand(x)
        if isinstance(hw_shape, PackedShapes):
            images = split_images(x, hw_shape, num_extra_tokens)
            x = torch.cat([self._mix_map(*image, num_extra_tokens) for image in images], 1)
        else:
            x = self._mix_map(x, hw_shape, num_extra_tokens)
        return self.fc2(self.activate(x))

    def expand(self, x: Tensor) -> Tensor:
        """Return the hidden channels of tokens (B, N, C) before the convolution."""
        return self.fc1(x)

    def mix(self, x: Tensor, hw_shape: Sequence[int]) -> Tensor:
        """Mix the hidden channels of neighbouring tokens (B, N, hidden)."""
        return map_to_tokens(self.dwconv(tokens_to_map(x, hw_shape)))

    def activate(self, x: Tensor) -> Tensor:
        """Return the input of the last layer for mixed channels."""
        return gelu_inplace_if_safe(self.dwconv, x)

    def _mix_map(self, x: Tensor, hw_shape: Sequence[int], num_extra_tokens: int) -> Tensor:
        if not num_extra_tokens:
            return self.mix(x, hw_shape)
        extra, x = x[:, :num_extra_tokens], x[:, num_extra_tokens:]
        return torch.cat([extra, self.mix(x, hw_shape)], 1)


class ResidualMixFFN(MixFFN):
    """Feed-forward layer of H-ViT³: linear, GELU, ``y += dwconv3x3(y)``, GELU, linear.

    Example:
        >>> ResidualMixFFN(32, 128)(torch.randn(1, 6, 32), hw_shape=(2, 3)).shape
        torch.Size([1, 6, 32])
    """

    def expand(self, x: Tensor) -> Tensor:
        return gelu_inplace_if_safe(self.fc1, self.fc1(x))

    def mix(self, x: Tensor, hw_shape: Sequence[int]) -> Tensor:
        return add_depthwise(x, self.dwconv, hw_shape)


class ConvFFN(ResidualMixFFN):
    """Feed-forward layer of RAVLT: linear, GELU, ``y += dwconv3x3(y)``, linear.

    Example:
        >>> ConvFFN(32, 112)(torch.randn(1, 6, 32), hw_shape=(2, 3)).shape
        torch.Size([1, 6, 32])
    """

    def activate(self, x: Tensor) -> Tensor:
        return x


class SwiGLU(BaseModule):
    """Feed-forward layer ``fc2(silu(g) v)`` with ``g, v = fc1(x)``, "GLU Variants Improve
    Transformer" (Shazeer, 2020).

    DINOv2-g and the plus sizes of DINOv3 have it. ``hidden_dims`` are the channels of g and of v.

    Example:
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
