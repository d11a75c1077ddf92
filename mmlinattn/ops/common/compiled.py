"""Kernels as a custom operator, which ``torch.compile`` calls without looking into it.

One operator serves all kernels: the module that holds them is an argument, and so are their options
as text, because a schema knows tensors, numbers and strings alone.
"""

import ast
from importlib import import_module
from typing import Any, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from .numerics import token_major


def compiled_call(
    module: str, options: tuple, num_sizes: int, tensors: Sequence[Optional[Tensor]]
) -> List[Tensor]:
    """Compute the results of kernels from compiled code, with autograd.

    Args:
        module: name of the module whose constant ``OPERATOR`` is a
            :class:`.launch.KernelOperator`.
        options: options of the kernels.
        num_sizes: number of options, the first ones, that may be symbolic sizes.
        tensors: tensors of the kernels.
    """
    given = tuple([x is not None for x in tensors])  # autograd overlooks lists with None
    rest = _encoded(given, tuple(options[num_sizes:]))
    return _forward([x for x in tensors if x is not None], module, list(options[:num_sizes]), rest)


@torch.compiler.assume_constant_result
def _encoded(*values: tuple) -> str:
    return repr(values)


def _decoded(
    module: str, tensors: Sequence[Tensor], sizes: Sequence[int], rest: str
) -> Tuple[Any, Any, List[Optional[Tensor]]]:
    """Return the operator, its options, and its tensors with None where there is none."""
    operator, (given, options) = import_module(module).OPERATOR, ast.literal_eval(rest)
    left = iter(tensors)
    return operator, operator.options(*sizes, *options), [next(left) if g else None for g in given]


@torch.library.custom_op('mmlinattn::kernels', mutates_args=())
def _forward(
    tensors: Sequence[Tensor], module: str, sizes: Sequence[int], rest: str
) -> List[Tensor]:
    from .launch import call_on_device  # which imports this module

    operator, options, given = _decoded(module, tensors, sizes, rest)
    return call_on_device(operator.forward, options, *given)


@_forward.register_fake
def _(tensors, module, sizes, rest):
    operator, options, given = _decoded(module, tensors, sizes, rest)
    return operator.fake(options, *given)


@torch.library.custom_op('mmlinattn::kernels_backward', mutates_args=())
def _backward(
    grads: Sequence[Tensor],
    tensors: Sequence[Tensor],
    saved: Sequence[Tensor],
    module: str,
    sizes: Sequence[int],
    rest: str,
) -> List[Tensor]:
    from .launch import call_on_device

    operator, options, given = _decoded(module, tensors, sizes, rest)
    return list(call_on_device(operator.backward, options, grads, given, saved))


@_backward.register_fake
def _(grads, tensors, saved, module, sizes, rest):
    count = import_module(module).OPERATOR.num_gradients
    return [
        token_major(x) if i < 3 and x.dim() == 4 else x.new_empty(x.shape)
        for i, x in enumerate(tensors[:count])
    ]


def _setup_context(ctx, inputs, output) -> None:
    tensors, *ctx.options = inputs
    operator, ctx.count = import_module(ctx.options[0]).OPERATOR, len(tensors)
    ctx.set_materialize_grads(False)  # no zeros for what only the backward pass needs
    ctx.save_for_backward(*tensors, *output[operator.num_unsaved :])


def _autograd(ctx, grads):
    saved, count = ctx.saved_tensors, ctx.count
    tensors, saved = list(saved[:count]), list(saved[count:])
    module, sizes, _ = ctx.options
    grads = list(grads[: import_module(module).OPERATOR.num_outputs])
    if any(g is None for g in grads):  # one of several outputs is unused; all are saved then
        grads = [torch.zeros_like(x) if g is None else g for g, x in zip(grads, saved)]
    found = _backward(grads, tensors, saved, *ctx.options)
    # An empty list counts as one of tensors.
    return [*found, *[None] * (count - len(found))], None, None if sizes else [], None


_forward.register_autograd(_autograd, setup_context=_setup_context)
