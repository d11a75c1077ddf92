"""Hand-written backward passes, which autograd cannot differentiate again."""

import functools
from types import SimpleNamespace
from typing import Any, Callable, Optional, Tuple

import torch
from torch import Tensor

Gradients = Tuple[Optional[Tensor], ...]


def refuse_second_derivative(ctx: Any, *grads: Any) -> Gradients:
    """Raise RuntimeError with the cure, in place of a backward pass."""
    raise RuntimeError(
        'this implementation has no second derivatives: call the operator with '
        "backend='reference', or inside mmlinattn.ops.use_backend('reference')"
    )


class _NoSecondDerivative(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gradient: Tensor, *inputs: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    backward = staticmethod(refuse_second_derivative)


def first_derivative_only(backward: Callable[..., Gradients]) -> Callable[..., Gradients]:
    """Raise an error where the results of a backward pass are differentiated.

    Decorates ``backward`` of a ``torch.autograd.Function`` that saves its inputs. PyTorch's
    ``once_differentiable`` raises only if the gradient of the output requires gradients itself;
    else second derivatives, as of a gradient penalty on a sum, would silently be zero.
    """

    @functools.wraps(backward)
    def wrapper(ctx: Any, *grads: Tensor) -> Gradients:
        if not torch.is_grad_enabled():
            return backward(ctx, *grads)
        saved = ctx.saved_tensors  # read once, as torch.utils.checkpoint demands
        with torch.no_grad():
            found = backward(SimpleNamespace(**vars(ctx), saved_tensors=saved), *grads)
        inputs = [x for x in (*saved, *grads) if x is not None and x.requires_grad]
        return tuple(x if x is None else _NoSecondDerivative.apply(x, *inputs) for x in found)

    return wrapper
