"""Linear layers and GELU computed by faster functions with the same result."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as torch_modules

from ...ops.common.matmul import linear
from ...ops.common.numerics import is_tracing, needs_gradient

HOOKS = ('_forward_hooks', '_forward_pre_hooks', '_backward_hooks', '_backward_pre_hooks')


def is_unmodified(layer: nn.Module, cls: type) -> bool:
    """Return True if a layer is exactly of class ``cls``, without hooks and outside a trace.

    A wrapped, quantised or parametrised layer has another class. Hooks may read or change inputs
    and outputs. In both cases the layer must be called.

    Example:
        >>> is_unmodified(nn.Linear(2, 3), nn.Linear), is_unmodified(nn.Identity(), nn.Linear)
        (True, False)
    """
    return type(layer) is cls and not is_tracing() and not has_hooks(layer)


def has_hooks(layer: nn.Module) -> bool:
    """Return True if a call of this layer runs hooks, its own or global ones.

    Example:
        >>> has_hooks(nn.Identity())
        False
    """
    has_global = any(getattr(torch_modules, f'_global{name}') for name in HOOKS)
    return has_global or any(getattr(layer, name) for name in HOOKS)


def apply_linear(layer: nn.Module, x: Tensor) -> Tensor:
    """Return ``layer(x)``, for an ``nn.Linear`` by :func:`mmlinattn.ops.common.matmul.linear`.

    Args:
        layer: ``nn.Linear``, or a layer that replaces it, such as a quantised one.
        x: (..., in).

    Returns:
        (..., out).

    Example:
        >>> apply_linear(nn.Linear(64, 96), torch.randn(2, 100, 64)).shape
        torch.Size([2, 100, 96])
    """
    if isinstance(layer, nn.Linear) and is_unmodified(layer, nn.Linear):
        return linear(x, layer.weight, layer.bias)
    return layer(x)


def gelu_inplace_if_safe(layer: nn.Module, x: Tensor) -> Tensor:
    """Return GELU of x, the output of ``layer``, in place if no gradient or hook needs x.

    Allocating a new tensor costs more than the function.

    Example:
        >>> layer, x = nn.Linear(4, 4), torch.randn(2, 4)
        >>> torch.equal(gelu_inplace_if_safe(layer, layer(x)), F.gelu(layer(x)))
        True
    """
    unmodified = is_unmodified(layer, nn.Linear) or is_unmodified(layer, nn.Conv2d)
    return torch.ops.aten.gelu_(x) if unmodified and not needs_gradient(x) else F.gelu(x)
