"""Layers of torch that may be computed in another way, with the same result."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as torch_modules

from ...ops.common.matmul import linear
from ...ops.common.numerics import is_tracing, needs_gradient

HOOKS = ('_forward_hooks', '_forward_pre_hooks', '_backward_hooks', '_backward_pre_hooks')


def is_plain(layer: nn.Module, kind: type) -> bool:
    """Whether a layer is just what torch has: of this very class, not wrapped, quantised or
    parametrised, and without hooks, which may look at or change what goes in and out.

    Example:
        >>> is_plain(nn.Linear(2, 3), nn.Linear), is_plain(nn.Identity(), nn.Linear)
        (True, False)
    """
    return type(layer) is kind and not is_tracing() and not is_hooked(layer)


def is_hooked(layer: nn.Module) -> bool:
    """Whether hooks wait for a call of this layer, which must then be called.

    Example:
        >>> is_hooked(nn.Identity())
        False
    """
    everywhere = any(getattr(torch_modules, f'_global{name}') for name in HOOKS)
    return everywhere or any(getattr(layer, name) for name in HOOKS)


def apply_linear(layer: nn.Module, x: Tensor) -> Tensor:
    """``layer(x)``; a plain linear layer by :func:`mmlinattn.ops.common.matmul.linear`.

    Args:
        layer: ``nn.Linear``, or what took its place.
        x: (..., in).

    Returns:
        (..., out).

    Example:
        >>> apply_linear(nn.Linear(64, 96), torch.randn(2, 100, 64)).shape
        torch.Size([2, 100, 96])
    """
    if isinstance(layer, nn.Linear) and is_plain(layer, nn.Linear):
        return linear(x, layer.weight, layer.bias)
    return layer(x)


def gelu_of(layer: nn.Module, x: Tensor) -> Tensor:
    """GELU of what a layer has returned: in place where neither a gradient nor a hook needs it,
    since a new tensor costs more than the function.

    Example:
        >>> layer, x = nn.Linear(4, 4), torch.randn(2, 4)
        >>> torch.equal(gelu_of(layer, layer(x)), F.gelu(layer(x)))
        True
    """
    own = is_plain(layer, nn.Linear) or is_plain(layer, nn.Conv2d)
    return torch.ops.aten.gelu_(x) if own and not needs_gradient(x) else F.gelu(x)
