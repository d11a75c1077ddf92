"""Feed-forward layers on tokens."""

from typing import Callable, Dict, Sequence

import torch
import torch.nn.functional as F
from mmengine.model import BaseModule
from torch import Tensor, nn

from .base import map_to_tokens, tokens_to_map
from .depthwise_conv import add_depthwise
from .linear_projection import apply_linear, gelu_of


def quick_gelu(x: Tensor) -> Tensor:
    """``x sigmoid(1.702 x)``, close to GELU."""
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: Dict[str, Callable[[Tensor], Tensor]] = {'gelu': F.gelu, 'quick_gelu': quick_gelu}


class MLP(BaseModule):
    """The feed-forward layer of ViT: linear, activation, linear, each token for itself.

    Args:
        embed_dims: channels C.
        hidden_dims: channels between the two linear layers.
        act: ``'gelu'`` or ``'quick_gelu'``.

    Raises:
        ValueError: an unknown activation.

    Example:
        >>> import torch
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
        """(B, N, C) to (B, N, C)."""
        return apply_linear(self.fc2, self.act(apply_linear(self.fc1, x)))


class ConvFFN(BaseModule):
    """RAVLT's feed-forward layer: linear, GELU, ``y += dwconv3x3(y)``, linear.

    Args:
        embed_dims: channels C.
        hidden_dims: channels between the two linear layers.

    Example:
        >>> import torch
        >>> ConvFFN(32, 112)(torch.randn(1, 6, 32), hw_shape=(2, 3)).shape
        torch.Size([1, 6, 32])
    """

    def __init__(self, embed_dims: int, hidden_dims: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(embed_dims, hidden_dims)
        self.dwconv = nn.Conv2d(hidden_dims, hidden_dims, 3, padding=1, groups=hidden_dims)
        self.fc2 = nn.Linear(hidden_dims, embed_dims)

    def forward(self, x: Tensor, hw_shape: Sequence[int]) -> Tensor:
        """(B, N, C) to (B, N, C)."""
        x = gelu_of(self.fc1, apply_linear(self.fc1, x))
        return apply_linear(self.fc2, add_depthwise(x, self.dwconv, hw_shape))


class MixFFN(ConvFFN):
    """SegFormer's feed-forward layer: linear, 3x3 depth-wise convolution, GELU, linear.

    Args:
        embed_dims: channels C.
        hidden_dims: channels between the two linear layers.

    Example:
        >>> import torch
        >>> MixFFN(32, 128)(torch.randn(1, 6, 32), hw_shape=(2, 3)).shape
        torch.Size([1, 6, 32])
    """

    def forward(self, x: Tensor, hw_shape: Sequence[int], num_extra_tokens: int = 0) -> Tensor:
        """(B, E + N, C) to (B, E + N, C); the E extra tokens, without a place on the map, take no
        part in the convolution."""
        hidden = apply_linear(self.fc1, x)
        x = map_to_tokens(self.dwconv(tokens_to_map(hidden[:, num_extra_tokens:], hw_shape)))
        if num_extra_tokens:
            x = torch.cat([hidden[:, :num_extra_tokens], x], 1)
        return apply_linear(self.fc2, gelu_of(self.dwconv, x))
