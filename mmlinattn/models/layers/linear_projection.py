"""Linear projections of attentions, checks for hooks, and GELU in place."""

from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as torch_modules

from ...ops.common.numerics import is_tracing, needs_gradient
from .cpu_linear import CPULinear, onednn_linear

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


def gelu_inplace_if_safe(layer: nn.Module, x: Tensor) -> Tensor:
    """Return GELU of x, the output of ``layer``, in place if no gradient or hook needs x.

    Allocating a new tensor costs more than the function.

    Example:
        >>> layer, x = nn.Linear(4, 4), torch.randn(2, 4)
        >>> torch.equal(gelu_inplace_if_safe(layer, layer(x)), F.gelu(layer(x)))
        True
    """
    unmodified = any(is_unmodified(layer, cls) for cls in (nn.Linear, CPULinear, nn.Conv2d))
    return torch.ops.aten.gelu_(x) if unmodified and not needs_gradient(x) else F.gelu(x)


class KeyBiaslessLinear(nn.Linear):
    """Projection to queries, keys, values and further parts in which keys have no bias.

    The bias has as many numbers as that of ``nn.Linear``, so that weights load into either; those
    of the keys are not read and get no gradient.

    Args:
        embed_dims: channels of the input and of each part.
        parts: number of parts, 3 or more.

    Example:
        >>> layer = KeyBiaslessLinear(4, 3)
        >>> layer(torch.zeros(1, 4))[:, 4:8].any().item()
        False
    """

    def __init__(self, embed_dims: int, parts: int) -> None:
        super().__init__(embed_dims, parts * embed_dims)

    def effective_bias(self) -> Tensor:
        """Return the bias with zeros for the keys."""
        keys = slice(self.in_features, 2 * self.in_features)
        before, after = self.bias[: keys.start], self.bias[keys.stop :]
        return torch.cat([before, torch.zeros_like(self.bias[keys]), after])

    def forward(self, x: Tensor) -> Tensor:
        """Project (..., C) to (..., parts * C)."""
        return F.linear(x, self.weight, self.effective_bias())


def projection_bias(layer: nn.Linear) -> Optional[Tensor]:
    """Return the bias that a projection adds.

    Example:
        >>> projection_bias(KeyBiaslessLinear(2, 3)).shape
        torch.Size([6])
    """
    return layer.effective_bias() if isinstance(layer, KeyBiaslessLinear) else layer.bias


def linear_rows(layer: nn.Linear, x: Tensor, rows: slice) -> Tensor:
    """Return the outputs ``rows`` of a projection, (..., number of rows)."""
    product = onednn_linear if isinstance(layer, CPULinear) else F.linear
    bias = projection_bias(layer)
    return product(x, layer.weight[rows], None if bias is None else bias[rows])
