"""Choice of the implementation of an operator.

Every operator has a ``'reference'`` implementation (the definition, short and slow), a ``'torch'``
implementation (fast, any device) and possibly a ``'triton'`` implementation. Some have further
algorithms with names of their own, such as ``'tile'``; only the ``backend`` argument accepts them.
``'torch'`` and ``'triton'`` have first derivatives only: a second backward pass raises an error.
Small random walks and additive attention on a CPU are left to autograd, which has both.

Order of decision:

1. the ``backend`` argument of the call, unless it is ``'auto'``;
2. the innermost :func:`use_backend` block of this thread or asyncio task;
3. the environment variable ``MMLINATTN_BACKEND``;
4. ``'triton'`` where it can serve the call and passes :mod:`.kernel_check` on this GPU, ``'torch'``
   otherwise.

Kernels run only on tested versions of Triton: other versions may compute NaN without an error.
"""

import os
import re
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any, Callable, Iterator, Optional, Tuple

import torch
from torch import Tensor

from .kernel_check import Trial, rejection
from .kernel_verdicts import triton_version
from .numerics import active_tracer, is_tracing, warn_once

BACKENDS = ('auto', 'reference', 'torch', 'triton')
ENV_VARIABLE = 'MMLINATTN_BACKEND'
TESTED_TRITON = ((3, 2), (3, 9))  # first and last minor version


class BackendError(RuntimeError):
    """A backend that was requested by name cannot serve the call."""


def choose_backend(
    operator: str,
    backend: str,
    q: Tensor,
    unsupported_reason: Optional[Callable[[], Optional[str]]] = None,
    algorithms: Tuple[str, ...] = (),
    trial: Optional[Callable[[], Trial]] = None,
) -> str:
    """Return the implementation that a call runs.

    Args:
        operator: name of the operator, for error messages.
        backend: ``backend`` argument of the call.
        q: first tensor of the call; its device decides.
        unsupported_reason: returns why the kernels cannot serve the call, or None if they can.
            Called only where they are wanted, so that it may import Triton. None for an operator
            without kernels.
        algorithms: further values that ``backend`` may have.
        trial: makes small calls like this one, to check the kernels at their first use.

    Returns:
        ``'reference'``, ``'torch'``, ``'triton'`` or one of ``algorithms``.

    Raises:
        ValueError: ``backend`` is unknown.
        BackendError: ``'triton'`` was requested and cannot serve the call.
    """
    check_backend(backend, algorithms)
    if backend == 'auto':
        backend = _traced or choice.backend
    if backend not in ('auto', 'triton'):
        return backend
    reason = _triton_unsupported(backend, q, unsupported_reason)
    if reason is None and backend == 'auto' and trial is not None:
        reason = rejection(operator, q.shape[-2], q.device, trial)
    if reason is None:
        return 'triton'
    if backend == 'triton':
        raise BackendError(
            f"{operator}: backend='triton' cannot serve this call: {reason}. "
            "Use backend='auto' or 'torch'."
        )
    if reason is TRITON_PROBLEM and not is_tracing():
        warn_once(f'mmlinattn: no Triton kernels on this GPU: {reason}', stacklevel=4)
    return 'torch'


def is_forced(backend: str) -> bool:
    """Return True if the user demands the kernels, by argument, block or environment variable."""
    return (_traced or choice.backend if backend == 'auto' else backend) == 'triton'


def check_backend(backend: str, algorithms: Tuple[str, ...] = (), source: str = 'backend') -> None:
    """Raise ValueError unless ``backend`` is one of ``BACKENDS`` or of ``algorithms``.

    Args:
        source: name of the argument or environment variable, for the message.
    """
    known = (*BACKENDS, *algorithms)
    if backend not in known:
        raise ValueError(f'{source} must be one of {known}, got {backend!r}')


def _triton_unsupported(
    backend: str, q: Tensor, unsupported_reason: Optional[Callable[[], Optional[str]]]
) -> Optional[str]:
    if unsupported_reason is None:
        return 'this operator has no Triton kernel'
    # Triton's interpreter runs kernels on a CPU, slowly: only on request.
    interpret = backend == 'triton' and os.environ.get('TRITON_INTERPRET') == '1'
    if not q.is_cuda and not interpret:
        return f'Triton kernels need a CUDA tensor, got one on {q.device}'
    if TRITON_PROBLEM is not None:
        return TRITON_PROBLEM
    # torch.compile accepts custom operators; other tracers do not.
    return active_tracer() or unsupported_reason()


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


DEFAULT = os.environ.get(ENV_VARIABLE, 'auto') or 'auto'
check_backend(DEFAULT, source=ENV_VARIABLE)
_variable: 'ContextVar[str]' = ContextVar('mmlinattn_backend', default=DEFAULT)


class _Choice(ModuleType):
    """Module whose attribute ``backend`` is what ``'auto'`` means in this thread or task.

    torch.compile reads attributes of modules as Python does, and compiles again where one differs.
    It cannot read a context variable, and torch 2.4 does not check attributes of threads again.
    """

    def __getattribute__(self, name: str) -> Any:
        return _variable.get() if name == 'backend' else super().__getattribute__(name)


choice = _Choice('choice')
# Backend of a block inside compiled code: torch.compile tracks globals, not context variables.
_traced: Optional[str] = None


@contextmanager
def use_backend(backend: str) -> Iterator[None]:
    """Set the backend of every operator that is called with ``backend='auto'`` in the block.

    The setting belongs to the current thread or asyncio task; a thread that is started inside the
    block has the default. A backward pass uses the backend of its forward pass.

    Args:
        backend: ``'auto'``, ``'reference'``, ``'torch'`` or ``'triton'``.

    Raises:
        ValueError: ``backend`` is none of these.

    Example:
        >>> import torch
        >>> from mmlinattn.ops import rala_attention, use_backend
        >>> q, k, v = torch.randn(3, 1, 2, 6, 8)
        >>> with use_backend('reference'):
        ...     out = rala_attention(q, k, v)
    """
    global _traced
    check_backend(backend)
    if torch.compiler.is_compiling():
        outer, _traced = _traced, backend
        try:
            yield
        finally:
            _traced = outer
        return
    before = _variable.get()
    _variable.set(backend)
    try:
        yield
    finally:
        _variable.set(before)
