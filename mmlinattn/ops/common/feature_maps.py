"""Feature maps ``phi`` without parameters, for queries and keys of linear attention.

Each is a differentiable function in :data:`FEATURE_MAPS`; :data:`FEATURE_GRADIENTS` has its
derivative in terms of its result, for backward passes written by hand.
"""

from typing import Callable, Dict

import torch
import torch.nn.functional as F
from torch import Tensor

from .numerics import is_tracing, needs_gradient


class _Elu1(torch.autograd.Function):
    """Its derivative is ``min(elu1(x), 1)``: the backward pass needs the result only, which
    attention keeps anyway."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        features = _elu1(x)
        ctx.save_for_backward(features)
        return features

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        (features,) = ctx.saved_tensors
        return _elu1_gradient(features, grad)


def _elu1(x: Tensor) -> Tensor:
    # exp(x) > x + 1 below 0. Faster than torch's elu.
    return torch.maximum(x.clamp(max=0).exp_(), x + 1)


def _elu1_gradient(features: Tensor, grad: Tensor) -> Tensor:
    return grad * features.clamp(max=1)


def elu1(x: Tensor) -> Tensor:
    """``elu(x) + 1``: positive, linear above 0, ``exp`` below."""
    if is_tracing():  # a compiler's code for the function above crashed (torch 2.11)
        return F.elu(x) + 1
    return _Elu1.apply(x) if needs_gradient(x) else _elu1(x)


def softmax_channels(x: Tensor) -> Tensor:
    """Softmax over the channels of each token."""
    return x.softmax(-1)


def _softmax_gradient(features: Tensor, grad: Tensor) -> Tensor:
    return features * (grad - (features * grad).sum(-1, keepdim=True))


FEATURE_MAPS: Dict[str, Callable[[Tensor], Tensor]] = {
    'elu+1': elu1,
    'relu': F.relu,
    'softmax': softmax_channels,
    'identity': lambda x: x,
}
# (phi(x), gradient of phi(x)) to the gradient of x.
FEATURE_GRADIENTS: Dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    'identity': lambda features, grad: grad,
    'elu+1': _elu1_gradient,
    'relu': lambda features, grad: grad * (features > 0),
    'softmax': _softmax_gradient,
}


def feature_map(name: str) -> Callable[[Tensor], Tensor]:
    """Look a feature map up; raises ValueError naming the known ones.

    Example:
        >>> import torch
        >>> feature_map('elu+1')(torch.zeros(2))
        tensor([1., 1.])
    """
    if name not in FEATURE_MAPS:
        raise ValueError(f'feature_map must be one of {tuple(FEATURE_MAPS)}, got {name!r}')
    return FEATURE_MAPS[name]
