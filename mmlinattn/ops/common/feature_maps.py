"""Feature maps ``phi`` without parameters, for queries and keys of linear attention."""

from typing import Callable, Dict

import torch
from torch import Tensor

from .numerics import is_tracing, needs_gradient


class _Elu1(torch.autograd.Function):
    """``elu(x) + 1``; its derivative ``min(elu1(x), 1)`` needs only the stored result."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        features = _elu1(x)
        ctx.save_for_backward(features)
        return features

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        (features,) = ctx.saved_tensors
        return grad * features.clamp(max=1)  # not in place: vmap may run over the gradient


def _elu1(x: Tensor) -> Tensor:
    # Faster than torch's elu, and exact for large negative x.
    return x.exp().clamp_(max=1).add_(x.relu())


def elu1(x: Tensor) -> Tensor:
    """Compute ``elu(x) + 1``: positive, linear above 0, ``exp`` below."""
    if is_tracing():  # compiled, torch 2.11 crashed in the function above and in its own elu
        return x.clamp(max=0).exp() + x.relu()
    return _Elu1.apply(x) if needs_gradient(x) else _elu1(x)


def softmax_gradient(weights: Tensor, grad: Tensor) -> Tensor:
    """Return the gradient of the logits of a softmax over the last axis."""
    return weights * (grad - (weights * grad).sum(-1, keepdim=True))


FEATURE_MAPS: Dict[str, Callable[[Tensor], Tensor]] = {
    'elu+1': elu1,
    'relu': torch.relu,
    'softmax': lambda x: x.softmax(-1),  # over the channels of each token
    'identity': lambda x: x,
}
# The same functions where autograd records nothing.
FEATURE_VALUES: Dict[str, Callable[[Tensor], Tensor]] = {**FEATURE_MAPS, 'elu+1': _elu1}
# Numbers of those that have kernels.
KERNEL_FEATURES = {'identity': 0, 'elu+1': 1, 'relu': 2}
# (phi(x), gradient of phi(x)) to the gradient of x.
FEATURE_GRADIENTS: Dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    'identity': lambda features, grad: grad,
    'elu+1': lambda features, grad: features.clamp(max=1).mul_(grad),
    'relu': lambda features, grad: grad * (features > 0),
    'softmax': softmax_gradient,
}


def feature_map(name: str) -> Callable[[Tensor], Tensor]:
    """Look a feature map up; raise ValueError with the known names if there is none.

    Example:
        >>> import torch
        >>> feature_map('elu+1')(torch.zeros(2))
        tensor([1., 1.])
    """
    if not isinstance(name, str) or name not in FEATURE_MAPS:
        raise ValueError(f'feature_map must be one of {tuple(FEATURE_MAPS)}, got {name!r}')
    return FEATURE_MAPS[name]
