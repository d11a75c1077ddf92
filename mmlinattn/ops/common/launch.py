"""Launches of the Triton kernels, in eager calls, in training and in compiled code.

Eager calls launch the kernels directly, in training from a ``torch.autograd.Function``; what a
launch needs besides its tensors is computed once for each shape. The code of ``torch.compile``
and dispatch modes see a custom operator, one for all kernels. The module that holds them is an
argument, and so are their options as text: a schema knows tensors, numbers and strings alone.
"""

import ast
import math
from importlib import import_module
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor

from .first_derivative import first_derivative_only
from .launch_table import Config
from .numerics import has_dispatch_mode, needs_gradient, token_major


class Launch:
    """One launch of a call: everything but its tensors, computed once for each shape.

    Triton specialises a kernel for its arguments at every launch. Sizes and constants of a launch
    never change, so the compiled kernel of the first call serves all later ones.

    The parameters of the kernel are tensors, then ``sizes``, then its ``constexpr`` parameters,
    ``constants`` by name. ``aligned``: the addresses of all tensors are multiples of 16 bytes.
    """

    __slots__ = (
        'aligned', 'compiled', 'constants', 'grid', 'kernel', 'options', 'rest', 'sizes', 'splits',
    )  # fmt: skip

    def __init__(
        self, kernel: Any, grid: Sequence[int], sizes: Sequence[float], constants: Dict[str, Any],
        config: Config, aligned: bool,
    ) -> None:  # fmt: skip
        # Triton refuses the integers of NumPy, which equal Python's as keys of the launches.
        self.sizes = tuple([x if isinstance(x, float) else int(x) for x in sizes])
        self.kernel, self.constants = kernel, constants
        self.grid = (*map(int, grid), 1, 1)[:3]
        self.splits = self.grid[1]  # chunks of a head, in kernels over tokens
        self.options = dict(num_warps=config.warps, num_stages=config.stages)
        self.aligned = aligned
        values = tuple(constants[name] for name in kernel.arg_names if name in constants)
        self.rest = self.sizes + values
        self.compiled: Any = None

    def __call__(self, *tensors: Any) -> None:
        """Launch the kernel on the current stream; Triton's own hooks see the first launch alone.

        Instead of tensors a compiled kernel takes the addresses of :meth:`Memory.parts` too.
        """
        compiled = self.compiled
        if compiled is None:
            compiled = start(self, tensors)
            self.compiled = compiled if self.aligned else None
            return
        # What `compiled[grid](*tensors, ...)` does, in a third of the time. Triton takes addresses
        # in place of tensors, and so asks the driver nothing about them.
        addresses = [x if x.__class__ is int else x.data_ptr() for x in tensors]
        compiled.run(
            *self.grid, current_stream(), compiled.function, compiled.packed_metadata,
            None, None, None, *addresses, *self.rest,
        )  # fmt: skip


class Memory:
    """Layout of several float32 tensors in one allocation, as every allocation costs the host time.

    The tensors begin at multiples of 64 bytes.
    """

    __slots__ = 'places', 'size'

    def __init__(self, *shapes: Sequence[int]) -> None:
        self.places: List[Tuple[int, Sequence[int]]] = []
        self.size = 0
        for shape in shapes:
            self.places.append((self.size, shape))
            self.size += -(-math.prod(shape) // 16) * 16

    def allocate(self, like: Tensor, last: Launch) -> List[Any]:
        """Return new memory on the device of ``like``, and its :meth:`parts`."""
        memory = like.new_empty(self.size, dtype=torch.float32) if self.places else like
        return [memory, *self.parts(memory, last)]

    def parts(self, memory: Tensor, last: Launch) -> List[Any]:
        """Return the tensors in ``memory``, or once ``last`` is compiled their addresses.

        ``last`` is the last launch of the pass; all launches that take the parts are compiled with
        it. Addresses are valid as long as the caller holds the memory.
        """
        if last.compiled is None:
            return [memory[i : i + math.prod(shape)].view(shape) for i, shape in self.places]
        start = memory.data_ptr()
        return [start + 4 * i for i, _ in self.places]


def current_stream() -> int:
    """Return the current CUDA stream of the current device."""
    return torch._C._cuda_getCurrentRawStream(torch._C._cuda_getDevice())


def start(launch: Launch, tensors: Sequence[Tensor]) -> Any:
    """Compile and launch a kernel by Triton; None in Triton's interpreter.

    Raises:
        RuntimeError: the kernel cannot be compiled or launched; the message names the cure.
    """
    try:
        return launch.kernel[launch.grid](
            *tensors, *launch.sizes, **launch.constants, **launch.options
        )
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:  # compilers, drivers and launchers raise arbitrary exceptions
        name = getattr(launch.kernel, '__name__', 'kernel').strip('_')
        raise RuntimeError(
            f'the Triton kernel {name} of mmlinattn failed: {type(error).__name__}: {error}. Set '
            'MMLINATTN_BACKEND=torch to run without kernels, and please report it with the output '
            "of 'mmlinattn doctor --gpu'"
        ) from error


def as_bytes(mask: Optional[Tensor], unused: Tensor) -> Tensor:
    """Return a padding mask as a kernel reads it; without a mask ``unused``, which is not read."""
    return unused if mask is None else mask.contiguous().view(torch.uint8)


class KernelOperator(NamedTuple):
    """The kernels of an operator, constant ``OPERATOR`` of the module that holds them.

    ``forward(options, *tensors)`` returns the outputs, which are like the first tensors, and the
    state, float32. ``backward(options, grads, tensors, saved)`` returns the gradients of the first
    tensors; ``saved`` is the state, or the outputs if there is no state.
    """

    forward: Callable[..., List[Tensor]]
    backward: Callable[..., Sequence[Tensor]]
    state: Optional[Callable[..., Memory]]  # layout of the state, by options and shapes of tensors
    options: Any  # their class, a NamedTuple of numbers, strings and None
    num_sizes: int  # number of options, the first ones, that may be symbolic sizes
    num_outputs: int = 1
    num_gradients: int = 3

    def __call__(self, options: Any, *tensors: Optional[Tensor]) -> Any:
        """Compute the output, or a tuple of several outputs; the first tensor is not None."""
        if torch.compiler.is_compiling() or has_dispatch_mode():
            given = tuple([x is not None for x in tensors])  # autograd overlooks lists with None
            present, sizes = [x for x in tensors if x is not None], list(options[: self.num_sizes])
            rest = _encoded(given, tuple(options[self.num_sizes :]))
            results = _forward(present, self.forward.__module__, sizes, rest)
        elif needs_gradient(*tensors):
            return _Function.apply(self, options, *tensors)
        else:
            results = call_on_device(self.forward, options, *tensors)
        return results[0] if self.num_outputs == 1 else tuple(results[: self.num_outputs])


def call_on_device(function: Callable[..., Any], options: Any, *args: Any) -> Any:
    """Call ``function(options, *args)``, with the device of its tensors as the current one."""
    first = args[0] if isinstance(args[0], Tensor) else args[0][0]
    index = first.get_device()
    if index < 0 or index == torch.cuda.current_device():
        return function(options, *args)
    with torch.cuda.device(index):
        return function(options, *args)


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, operator: KernelOperator, options: Any, *tensors: Optional[Tensor]) -> Any:
        results = call_on_device(operator.forward, options, *tensors)
        ctx.operator, ctx.options, ctx.count = operator, options, len(tensors)
        ctx.save_for_backward(*tensors, *(results[operator.num_outputs :] or results))
        return results[0] if operator.num_outputs == 1 else tuple(results[: operator.num_outputs])

    @staticmethod
    @first_derivative_only
    def backward(ctx, *grads: Tensor) -> Tuple[Optional[Tensor], ...]:
        saved, count = ctx.saved_tensors, ctx.count
        found = call_on_device(
            ctx.operator.backward, ctx.options, grads, saved[:count], saved[count:]
        )
        return (None, None, *found, *[None] * (count - len(found)))


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
    operator, options, given = _decoded(module, tensors, sizes, rest)
    return call_on_device(operator.forward, options, *given)


@_forward.register_fake
def _(tensors, module, sizes, rest):
    operator, options, given = _decoded(module, tensors, sizes, rest)
    outputs = [token_major(x) for x in tensors[: operator.num_outputs]]
    if operator.state is None:
        return outputs
    state = operator.state(options, [None if x is None else x.shape for x in given])
    return [*outputs, tensors[0].new_empty(state.size, dtype=torch.float32)]


@torch.library.custom_op('mmlinattn::kernels_backward', mutates_args=())
def _backward(
    grads: Sequence[Tensor], tensors: Sequence[Tensor], saved: Sequence[Tensor], module: str,
    sizes: Sequence[int], rest: str,
) -> List[Tensor]:  # fmt: skip
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
    ctx.save_for_backward(*tensors, *(output[operator.num_outputs :] or output))


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
