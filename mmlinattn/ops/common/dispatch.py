"""Which implementation of an operator runs: one switch for the whole package.

Every operator has a ``reference`` form (the definition, short and slow), a ``portable`` form
(fast, any device, torch only) and possibly a ``fused`` form (Triton). Where there are several
portable algorithms each has its name, which only the argument may be. The last two have first
derivatives only, and raise an error where a second one is asked for and they do not leave it to
autograd, as on small maps. The caller's ``backend``
argument decides; where it says ``'auto'``, the innermost :func:`use_backend` block of this thread
or task decides; where there is none, the environment variable ``MMLINATTN_BACKEND`` decides; where
that is unset or ``auto``, the operator takes ``fused`` when it can serve and ``portable``
otherwise. Kernels run on tested versions of Triton alone: another one may compute NaN, and says so
nowhere.
"""

import functools
import importlib.metadata
import importlib.util
import os
import re
import warnings
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Callable, Dict, Generic, Iterator, Optional, Tuple, TypeVar

import torch
from torch import Tensor

from .numerics import one_graph, recorded_by

BACKENDS = ('auto', 'reference', 'portable', 'fused')
ENV_VARIABLE = 'MMLINATTN_BACKEND'
TESTED_TRITON = ((3, 2), (3, 9))  # the first and the last minor version


def triton_problem(version: Optional[str]) -> Optional[str]:
    """Why the kernels do not run on this version of Triton; None where they do."""
    if version is None:
        return 'Triton is not installed (pip install triton)'
    first, last = TESTED_TRITON
    if first <= tuple(map(int, re.findall(r'\d+', version)[:2])) <= last:
        return None
    tested = ' to '.join('{}.{}'.format(*minor) for minor in TESTED_TRITON)
    return f'the kernels are tested with Triton {tested}, this is {version}'


def _triton_version() -> Optional[str]:
    if importlib.util.find_spec('triton') is None:
        return None
    for name in ('triton', 'pytorch-triton', 'pytorch-triton-rocm', 'triton-windows'):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return 'of an unknown version'


# Once: torch.compile cannot trace it.
TRITON_PROBLEM = triton_problem(_triton_version())


@functools.cache
def _say_once(problem: str) -> None:
    warnings.warn(f'mmlinattn: no fused kernels on this GPU: {problem}', stacklevel=4)


class BackendError(RuntimeError):
    """A backend was asked for by name and cannot serve the call."""


def _checked(backend: str, source: str, known: Tuple[str, ...] = BACKENDS) -> str:
    if backend not in known:
        raise ValueError(f'{source} must be one of {known}, got {backend!r}')
    return backend


DEFAULT = _checked(os.environ.get(ENV_VARIABLE, 'auto') or 'auto', ENV_VARIABLE)
_variable: 'ContextVar[str]' = ContextVar('mmlinattn_backend', default=DEFAULT)


class _Choice(ModuleType):
    """``backend`` is what ``'auto'`` stands for in this thread or task.

    A module, because a compiler reads attributes of modules as Python does, and makes another graph
    where one differs; a context variable it cannot read, and torch 2.4 does not look again at
    attributes of threads.
    """

    def __getattribute__(self, name: str) -> Any:
        return _variable.get() if name == 'backend' else super().__getattribute__(name)


choice = _Choice('choice')
# Of a block inside compiled code: a compiler follows changes of globals, not of context variables.
_traced: Optional[str] = None


@contextmanager
def use_backend(backend: str) -> Iterator[None]:
    """Makes every operator called with ``backend='auto'`` inside the block use ``backend``.

    The choice is of this thread, or task of asyncio; a thread that is started inside the block has
    the default. Backward passes go the way of their forward pass, wherever they run.

    Args:
        backend: ``'auto'``, ``'reference'``, ``'portable'`` or ``'fused'``.

    Raises:
        ValueError: if ``backend`` is none of these.

    Example:
        >>> import torch
        >>> from mmlinattn.ops import rala_attention, use_backend
        >>> q, k, v = torch.randn(3, 1, 2, 6, 8)
        >>> with use_backend('reference'):
        ...     out = rala_attention(q, k, v)
    """
    global _traced
    _checked(backend, 'backend')
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


Result = TypeVar('Result')


@dataclass(frozen=True)
class Operator(Generic[Result]):
    """The implementations of one operator; all take its tensors and its options.

    Args:
        name: shown in error messages.
        reference, portable: always there.
        kernels: imports the module of the Triton form, called where that is first asked for; None
            where there is none yet. The module has two functions of the same arguments: ``fused``,
            and ``refuses``, which returns why the kernels cannot serve them, or None if they can.
        algorithms: portable ones that can be asked for by name.
    """

    name: str
    reference: Callable[..., Result]
    portable: Callable[..., Result]
    kernels: Optional[Callable[[], ModuleType]] = None
    algorithms: Dict[str, Callable[..., Result]] = field(default_factory=dict)

    def check(self, backend: str) -> None:
        """Raises ValueError unless ``backend`` is one of this operator's."""
        _checked(backend, 'backend', (*BACKENDS, *self.algorithms))

    def __call__(self, backend: str, q: Tensor, *args) -> Result:
        self.check(backend)
        if backend in self.algorithms:
            return self.algorithms[backend](q, *args)
        if backend == 'auto':
            backend = _traced or choice.backend
        if backend == 'reference':
            return self.reference(q, *args)
        if backend == 'portable':
            return self.portable(q, *args)
        why_not = self._why_not_fused(backend, q, *args)
        if self.kernels and why_not is None:
            return self.kernels().fused(q, *args)
        if backend == 'fused':
            raise BackendError(
                f"{self.name}: backend='fused' cannot serve this call: {why_not}. "
                "Use backend='auto' or 'portable'."
            )
        if why_not is TRITON_PROBLEM and not one_graph():
            _say_once(why_not)
        return self.portable(q, *args)

    def _why_not_fused(self, backend: str, q: Tensor, *args) -> Optional[str]:
        if self.kernels is None:
            return 'this operator has no fused kernel'
        # Triton's interpreter runs kernels on a CPU, slowly: only where it is asked for.
        interpret = backend == 'fused' and os.environ.get('TRITON_INTERPRET') == '1'
        if not q.is_cuda and not interpret:
            return f'fused kernels need a CUDA tensor, got one on {q.device}'
        if TRITON_PROBLEM is not None:
            return TRITON_PROBLEM
        # A compiler takes custom operators.
        return recorded_by() or self.kernels().refuses(q, *args)
