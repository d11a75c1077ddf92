"""Feature maps ``phi`` without parameters, for queries and keys of linear attention."""

from typing import Callable, Dict, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor


class _Elu1(torch.autograd.Function):
    """Its derivative is ``min(elu1(x), 1)``: the backward pass needs the result only, which
    attention keeps anyway."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        # exp(x) > x + 1 below 0. Faster than torch's elu.
        return torch.maximum(x.clamp(max=0).exp_(), x + 1)

    @staticmethod
    def setup_context(ctx, inputs: Tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        (output,) = ctx.saved_tensors
        return grad * output.clamp(max=1)


def elu1(x: Tensor) -> Tensor:
    """``elu(x) + 1``: positive, linear above 0, ``exp`` below."""
    if torch.compiler.is_compiling():
        # A compiler fuses these by itself; its code for the function above crashed (torch 2.11).
        return F.elu(x) + 1
    return _Elu1.apply(x)


def softmax_channels(x: Tensor) -> Tensor:
    """Softmax over the channels of each token."""
    return x.softmax(-1)


FEATURE_MAPS: Dict[str, Callable[[Tensor], Tensor]] = {
    'elu+1': elu1,
    'relu': F.relu,
    'softmax': softmax_channels,
}


def feature_map(name: str) -> Callable[[Tensor], Tensor]:
    """Looks a feature map up; raises ValueError naming the known ones.

    Example:
        >>> import torch
        >>> feature_map('elu+1')(torch.zeros(2))
        tensor([1., 1.])
    """
    if name not in FEATURE_MAPS:
        raise ValueError(f'feature_map must be one of {tuple(FEATURE_MAPS)}, got {name!r}')
    return FEATURE_MAPS[name]
