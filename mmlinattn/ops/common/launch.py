"""Launches of the Triton kernels, in eager calls, in training and in compiled code.

Eager calls launch the kernels directly, in training from a ``torch.autograd.Function``; what a
launch needs besides its tensors is computed once for each shape. The code of ``torch.compile``
and dispatch modes see a custom operator, one for all kernels. The module that holds them is an
argument, and so are their options as text: a schema knows tensors, numbers and strings alone.
"""

import ast
import functools
import math
from importlib import import_module
from operator import index
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor

from . import launch_table
from .first_derivative import first_derivative_only, refuse_second_derivative
from .launch_table import Config
from .numerics import has_dispatch_mode, needs_gradient, token_major

PLAIN = (Tensor, torch.nn.Parameter)


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


class Tokens(NamedTuple):
    """Facts about q, k or v that decide the launches of a call."""

    batch: int  # of packed images their number
    heads: int
    num_tokens: int  # of packed images those of the longest
    dim: int
    strides: Tuple[int, ...]
    dtype: torch.dtype
    device_index: Optional[int]  # None in Triton's interpreter

    def config(self, kernel: str, num_anchors: int = 0) -> Config:
        """Return the configuration of a kernel, see :func:`.launch_table.find`."""
        if self.device_index is None:
            return launch_table.INTERPRETED
        row = launch_table.architecture(torch.cuda.get_device_properties(self.device_index))
        found = launch_table.find(row, kernel, self.dtype, self.dim, num_anchors)
        assert found is not None, kernel  # unsupported_tokens has looked it up
        return found

    def chunk(self, config: Config) -> int:
        """Return the number of tokens of a program.

        The programs that fit on the device share the tokens, at least four blocks each, because
        each writes its sums. In the interpreter it is two blocks, so that tests see several chunks.
        """
        if self.device_index is None:
            return 2 * config.block
        device = torch.cuda.get_device_properties(self.device_index)
        programs = _programs(config, device) * device.multi_processor_count
        programs = max(1, programs // (self.batch * self.heads))
        return config.block * max(4, -(-self.num_tokens // (programs * config.block)))


class CallKey(NamedTuple):
    """Everything that decides the launches of a call; a key of caches."""

    options: Any
    shapes: Tuple[Any, ...]  # of the tensors, None for those that are not given
    strides: Tuple[Any, ...]
    dtypes: Tuple[Any, ...]
    device_index: Optional[int]  # None in Triton's interpreter
    aligned: bool  # the addresses of all tensors are multiples of 16 bytes
    negative: bool  # a tensor has torch's lazy minus sign, which no kernel sees

    @classmethod
    def of(cls, options: Any, *tensors: Any, saved: Sequence[Tensor] = ()) -> 'CallKey':
        """Return the key of tensors or None, the first one a tensor; of ``saved`` addresses count.

        Hooks of saved tensors may have moved them.
        """
        shapes = tuple([None if x is None else x.shape for x in tensors])
        strides = tuple([None if x is None else x.stride() for x in tensors])
        dtypes = tuple([None if x is None else x.dtype for x in tensors])
        address, negative = 0, False
        for x in tensors:
            if x is not None:
                address |= x.data_ptr()
                negative |= x.is_neg()
        for x in saved:
            address |= x.data_ptr()
        index = tensors[0].get_device()
        index = None if index < 0 else index
        return cls(options, shapes, strides, dtypes, index, not address & 15, negative)

    def tokens(self, place: int) -> Tokens:
        """Return the facts about tensor ``place``, (B, heads, N, d)."""
        batch, heads, num_tokens, dim = self.shapes[place]
        strides = self.strides[place]
        return Tokens(batch, heads, num_tokens, dim, strides, self.dtypes[0], self.device_index)

    def over_tokens(
        self, name: str, kernel: Any, x: Tokens, strides: Sequence[int], *sizes: float,
        after: Sequence[float] = (), num_anchors: int = 0, **constants: Any,
    ) -> Launch:  # fmt: skip
        """Return the launch of one program per head and chunk of the tokens ``x``.

        After its tensors the kernel has ``strides``, the number of heads and of tokens, ``sizes``,
        the tokens of a chunk, and ``after``. ``constants`` are its ``constexpr`` parameters besides
        D, BD and BN.
        """
        config = x.config(name, num_anchors)
        chunk = x.chunk(config)
        constants.update(D=x.dim, BD=padded(x.dim), BN=config.block)
        arguments = (*strides, x.heads, x.num_tokens, *sizes, chunk, *after)
        grid = x.batch * x.heads, -(-x.num_tokens // chunk)
        return Launch(kernel, grid, arguments, constants, config, self.aligned)


def padded(size: int) -> int:
    """Return the padded size of a dimension in a kernel: the next power of 2, at least 16."""
    return max(16, 1 << (size - 1).bit_length())


def token_strides(x: Tokens) -> Tuple[int, int, int, int]:
    """Return the strides of a new tensor of :func:`.numerics.token_major`."""
    width = x.heads * x.dim
    return x.num_tokens * width, x.dim, width, 1


def _programs(config: Config, device: Any) -> int:
    """Return how many programs of a kernel a multiprocessor runs at once."""
    of_warp = -(-max(config.registers, 16) // 8) * 8 * 32  # registers come in steps of 8
    shared = device.shared_memory_per_multiprocessor // 1024
    fit = min(
        device.regs_per_multiprocessor // (of_warp * config.warps),
        shared // (config.shared + 1),  # each program reserves another KiB
        device.max_threads_per_multi_processor // (32 * config.warps),
    )
    return max(fit, 1)


class KernelOperator(NamedTuple):
    """The kernels of an operator, constant ``OPERATOR`` of the module that holds them.

    ``forward(key)`` plans a pass for a :class:`CallKey` of the tensors. The plan is called
    with them and returns the outputs, which are like the first tensors, and the state, float32.
    ``backward(key)`` has the gradients of the outputs in its key, too. The plan is called with
    tensors, state (or outputs if there is no state) and gradients, and returns the gradients of the
    first tensors.
    """

    module: str  # that holds them
    forward: Callable[[CallKey], Callable[..., List[Tensor]]]
    backward: Callable[[CallKey], Callable[..., Sequence[Tensor]]]
    state: Optional[Callable[..., Memory]]  # layout of the state, by options and shapes of tensors
    options: Any  # their class, a NamedTuple of numbers, strings and None
    num_sizes: int  # number of options, the first ones, that may be symbolic sizes
    num_outputs: int = 1
    num_gradients: int = 3

    def __call__(self, options: Any, *tensors: Optional[Tensor]) -> Any:
        """Compute the output, or a tuple of several outputs; the first tensor is not None."""
        traced = torch.compiler.is_compiling() or has_dispatch_mode()
        if traced or tensors[0].__class__ not in PLAIN:  # a fake tensor outside of its mode
            given = tuple([x is not None for x in tensors])  # autograd overlooks lists with None
            present, sizes = [x for x in tensors if x is not None], list(options[: self.num_sizes])
            rest = _encoded(given, tuple([_constant(x) for x in options[self.num_sizes :]]))
            results = _forward(present, self.module, sizes, rest)
        elif needs_gradient(*tensors):
            return _Function.apply(self, options, *tensors)
        else:
            results = _run(self.forward, options, tensors)
        return results[0] if self.num_outputs == 1 else tuple(results[: self.num_outputs])


def _run(
    plan: Callable[[CallKey], Callable[..., Any]], options: Any, tensors: Sequence[Any],
    saved: Sequence[Tensor] = (), grads: Sequence[Tensor] = (),
) -> Any:  # fmt: skip
    """Compute a pass, with the device of its tensors as the current one."""
    key = CallKey.of(options, *tensors, *grads, saved=saved)
    if key.negative:  # as gradients of complex numbers
        tensors = [None if x is None else x.resolve_neg() for x in tensors]
        return _run(plan, options, tensors, saved, [x.resolve_neg() for x in grads])
    launches, index = _planned(plan, key), key.device_index
    if index is None or index == torch.cuda.current_device():
        return launches(*tensors, *saved, *grads)
    with torch.cuda.device(index):
        return launches(*tensors, *saved, *grads)


@functools.lru_cache(maxsize=4096)
def _planned(plan: Callable[[CallKey], Callable[..., Any]], key: CallKey) -> Callable[..., Any]:
    for shape, strides in zip(key.shapes, key.strides):
        if shape is not None and len(shape) == 4 and strides[3] * shape[3] >= 2**31:
            raise ValueError(
                f'channels of a tensor are {strides[3]} numbers apart, and kernels reach 2^31 of '
                'them: call contiguous() on queries, keys, values, and the gradient of the output'
            )
    return plan(key)


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, operator: KernelOperator, options: Any, *tensors: Optional[Tensor]) -> Any:
        results = _run(operator.forward, options, tensors)
        ctx.operator, ctx.options, ctx.count = operator, options, len(tensors)
        ctx.save_for_backward(*tensors, *(results[operator.num_outputs :] or results))
        return results[0] if operator.num_outputs == 1 else tuple(results[: operator.num_outputs])

    @staticmethod
    @first_derivative_only
    def backward(ctx, *grads: Tensor) -> Tuple[Optional[Tensor], ...]:
        saved, count = ctx.saved_tensors, ctx.count
        found = _run(ctx.operator.backward, ctx.options, saved[:count], saved[count:], grads)
        return (None, None, *found, *[None] * (count - len(found)))


def _constant(value: Any) -> Any:
    """Return a number as one that torch.compile takes for a constant, also with dynamic=True."""
    if isinstance(value, float):
        return math.ldexp(value, 0)
    return index(value) if type(value) is int else value


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
    return _run(operator.forward, options, given)


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
    return list(_run(operator.backward, options, given, saved, grads))


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
_backward.register_autograd(refuse_second_derivative)
