"""Torch implementation in place of kernels that fail, forward or backward."""

from contextvars import ContextVar
from typing import Any, Callable, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor

from .dispatch import is_forced
from .kernel_check import switch_off


class Fallback(NamedTuple):
    """Torch implementation of the call that runs, for its backward pass."""

    operator: str
    torch_form: Callable[..., Any]


# Read by the custom operators' setup_context, which runs inside the call.
_fallback: 'ContextVar[Optional[Fallback]]' = ContextVar('mmlinattn_fallback', default=None)


def current_fallback() -> Optional[Fallback]:
    """Return what a backward pass runs after an error; None where kernels were forced."""
    return None if torch.compiler.is_compiling() else _fallback.get()


def run_kernels(
    operator: str,
    backend: str,
    kernels: Callable[..., Any],
    torch_form: Callable[..., Any],
    *tensors: Optional[Tensor],
    inner_form: Optional[Callable[..., Any]] = None,
) -> Any:
    """Call ``kernels(*tensors)``; after an error switch them off and call ``torch_form``.

    Args:
        operator: its public name.
        backend: argument of the call. If kernels were requested, their errors are raised.
        kernels, torch_form: two implementations of the same function of ``tensors``.
        inner_form: torch form of the custom operator inside ``kernels``, if it takes other tensors.
    """
    if is_forced(backend) or torch.compiler.is_compiling():
        return kernels(*tensors)
    token = _fallback.set(Fallback(operator, inner_form or torch_form))
    try:
        return kernels(*tensors)
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:
        switch_off(operator, error)
    finally:
        _fallback.reset(token)
    return torch_form(*tensors)


def gradients(
    fallback: Optional[Fallback],
    kernels: Callable[[], Tuple[Optional[Tensor], ...]],
    tensors: Sequence[Tensor],
    *grads: Tensor,
) -> Tuple[Optional[Tensor], ...]:
    """Return the gradients of ``tensors`` by the kernels, after an error by the torch form."""
    if fallback is None:
        return kernels()
    try:
        return kernels()
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:
        switch_off(fallback.operator, error)
    leaves = [x.detach().requires_grad_() for x in tensors]
    with torch.enable_grad():
        out = fallback.torch_form(*leaves)
    return torch.autograd.grad(out, leaves, grads if isinstance(out, tuple) else grads[0])
