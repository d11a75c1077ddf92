"""Choice of the implementation of an operator.

Every operator has a ``'reference'`` implementation (the definition, short and slow), a ``'torch'``
implementation (fast, any device) and possibly a ``'triton'`` implementation. Further algorithms,
such as ``'tile'``, have names that only the ``backend`` argument accepts.
``'torch'`` and ``'triton'`` have first derivatives only: a second backward pass raises an error,
except of small random walks and additive attention on a CPU, which are left to autograd.

Order of decision:

1. the ``backend`` argument of the call, unless it is ``'auto'``;
2. the innermost :func:`use_backend` block;
3. the environment variable ``MMLINATTN_BACKEND``;
4. ``'triton'`` on NVIDIA GPUs of compute capability 8.0 and newer if Triton is installed and the
   kernels support dtype, widths and options of the call; ``'torch'`` otherwise.

It is the same in every process and at every call. Kernels run only on tested versions of Triton:
others may compute NaN without an error. ``mmlinattn doctor --gpu`` compares them with float64.
"""

import functools
import importlib.metadata
import importlib.util
import os
import re
from contextlib import contextmanager
from typing import Any, Callable, Iterator, Optional, Tuple

import torch
from torch import Tensor

from .numerics import active_tracer

BACKENDS = ('auto', 'reference', 'torch', 'triton')
ENV_VARIABLE = 'MMLINATTN_BACKEND'
# Others may have no memory of their own. torch.compile and counters of operations use fake ones.
PLAIN_TENSORS = ('Tensor', 'Parameter', 'FakeTensor')
TESTED_TRITON = ((3, 3), (3, 9))  # first and last minor version


class BackendError(RuntimeError):
    """A backend that was requested by name cannot serve the call."""


def choose_backend(
    operator: str, backend: str, q: Tensor,
    unsupported_reason: Optional[Callable[..., Optional[str]]] = None, *args: Any,
    algorithms: Tuple[str, ...] = (),
) -> str:  # fmt: skip
    """Return the name of the implementation that a call runs; the device of ``q`` decides.

    ``unsupported_reason(*args)`` returns why the kernels cannot serve the call, or None; it is None
    for an operator without kernels. ``algorithms`` are further values of ``backend``.

    Raises:
        ValueError: ``backend`` is unknown.
        BackendError: ``'triton'`` was requested and cannot serve the call.
    """
    if backend == 'auto':
        backend = _backend
        if backend == 'auto' and (unsupported_reason is None or not q.is_cuda):
            return 'torch'
    else:
        check_backend(backend, algorithms)
    if backend not in ('auto', 'triton'):
        return backend
    reason: Optional[str] = 'this operator has no Triton kernel'
    if unsupported_reason is not None:
        reason = _unsupported_device(q, backend) or unsupported_reason(*args)
        if reason is None:
            return 'triton'
    if backend == 'triton':
        raise BackendError(
            f"{operator}: backend='triton' cannot serve this call: {reason}. "
            "Use backend='torch', or 'auto' without use_backend and MMLINATTN_BACKEND."
        )
    return 'torch'


def check_backend(backend: str, algorithms: Tuple[str, ...] = (), source: str = 'backend') -> None:
    """Raise ValueError unless ``backend``, given by ``source``, is one of those known."""
    known = (*BACKENDS, *algorithms)
    if backend not in known:
        raise ValueError(f'{source} must be one of {known}, got {backend!r}')


def _unsupported_device(q: Tensor, backend: str) -> Optional[str]:
    """Return why no kernel runs on the device of ``q``, or while it is traced; None if they do."""
    if q.is_cuda:
        reason = gpu_problem(q.get_device())
    elif backend == 'triton' and os.environ.get('TRITON_INTERPRET') == '1':
        reason = TRITON_PROBLEM  # the interpreter runs kernels on a CPU, slowly: only on request
    else:
        reason = f'Triton kernels need a CUDA tensor, got one on {q.device}'
    if reason is None and type(q).__name__ not in PLAIN_TENSORS:
        reason = f'kernels need a plain tensor, got {type(q).__name__}'
    if reason is None and not q.numel():
        reason = f'kernels need tokens, got {tuple(q.shape)}'
    # torch.compile accepts custom operators; other tracers do not.
    return reason or active_tracer()


@torch.compiler.assume_constant_result
def gpu_problem(index: int) -> Optional[str]:
    """Return why no kernel runs on a CUDA device, or None if they do."""
    return _gpu_problem(index)


@functools.cache
def _gpu_problem(index: int) -> Optional[str]:
    if TRITON_PROBLEM is not None:
        return TRITON_PROBLEM
    if torch.version.hip is not None:
        return 'kernels are made for NVIDIA GPUs'
    device = torch.cuda.get_device_properties(index)
    if device.major < 8:
        version = f'{device.major}.{device.minor}'
        return f'kernels need compute capability 8.0, {device.name} has {version}'
    return None


def triton_version() -> Optional[str]:
    """Return the version of Triton without importing it, or None."""
    if importlib.util.find_spec('triton') is None:
        return None
    for name in ('triton', 'pytorch-triton', 'triton-windows'):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return 'of an unknown version'


def triton_problem(version: Optional[str]) -> Optional[str]:
    """Return why the kernels do not run on a version of Triton, or None if they do."""
    if version is None:
        return 'Triton is not installed (pip install triton)'
    first, last = TESTED_TRITON
    if first <= tuple(map(int, re.findall(r'\d+', version)[:2])) <= last:
        return None
    tested = ' to '.join('{}.{}'.format(*minor) for minor in TESTED_TRITON)
    return f'the kernels are tested with Triton {tested}, this is {version}'


# Computed once: torch.compile cannot trace it.
TRITON_PROBLEM = triton_problem(triton_version())
# What 'auto' means; torch.compile compiles again where it changes.
_backend = os.environ.get(ENV_VARIABLE) or 'auto'
check_backend(_backend, source=ENV_VARIABLE)


def active_backend() -> str:
    """Return the backend of calls with ``backend='auto'``."""
    return _backend


@contextmanager
def use_backend(backend: str) -> Iterator[None]:
    """Set the backend of every operator that is called with ``backend='auto'`` in the block.

    The setting belongs to the process. Blocks in different threads or tasks must not overlap: pass
    ``backend`` to each call there. A backward pass uses the backend of its forward pass.

    Raises:
        ValueError: it is none of ``'auto'``, ``'reference'``, ``'torch'`` and ``'triton'``.

    Example:
        >>> import torch
        >>> from mmlinattn.ops import rala_attention, use_backend
        >>> q, k, v = torch.randn(3, 1, 2, 6, 8)
        >>> with use_backend('reference'):
        ...     out = rala_attention(q, k, v)
    """
    global _backend
    check_backend(backend)
    outer, _backend = _backend, backend
    try:
        yield
    finally:
        _backend = outer
