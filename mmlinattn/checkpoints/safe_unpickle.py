"""Types that checkpoints and pickled annotations may hold; nothing else is unpickled.

torch's ``weights_only`` reader calls only what it is told to allow. Of NumPy that is too much:
``numpy.ndarray`` and the state of ``numpy.dtype`` can turn bytes of a file into pointers. Their
names therefore stand for the two classes below, which accept numbers and text alone.
"""

import codecs
import pickle
import re
import threading
from argparse import Namespace
from collections import OrderedDict
from contextlib import contextmanager
from pathlib import PosixPath
from typing import Any, Callable, Dict, Iterator, Sequence

import numpy as np
import torch
from mmengine.config import ConfigDict
from mmengine.logging import HistoryBuffer
from mmengine.optim.scheduler import OneCycleParamScheduler

NUMBERS_AND_TEXT = re.compile(r'[<>=|]?[?bhilquBHILQefdFDgGSUc]\d*')
# Functions that the logs and the schedulers of MMEngine hold, which are pickled with getattr.
METHODS = {
    (owner, name): getattr(owner, name)
    for owner, names in (
        (HistoryBuffer, ('min', 'max', 'mean', 'current')),
        (OneCycleParamScheduler, ('_annealing_cos', '_annealing_linear')),
    )
    for name in names
}


class _DType:
    """A ``numpy.dtype`` of numbers or text."""

    def __init__(self, code: str, align: bool = False, copy: bool = False) -> None:
        if not NUMBERS_AND_TEXT.fullmatch(code):
            raise pickle.UnpicklingError(f'numpy.dtype must not be called with {code!r}')
        self.value = np.dtype(code)

    def __setstate__(self, state: Sequence) -> None:
        _, order, *fields = state[:5]
        if fields != [None] * 3:
            raise pickle.UnpicklingError('numpy.dtype must not be called with fields')
        if tuple(state[5:8]) != self.value.__reduce__()[2][5:8]:  # what NumPy would believe
            raise pickle.UnpicklingError('numpy.dtype must not be called with another size')
        self.value = self.value.newbyteorder(order if order in ('<', '>') else '=')


class _Array(np.ndarray):
    """A NumPy array that is created empty and filled by its state; it is saved as an array."""

    def __new__(cls, *args: Any) -> '_Array':
        raise pickle.UnpicklingError('numpy.ndarray must not be called')

    def __setstate__(self, state: Sequence) -> None:
        version, shape, dtype, fortran, data = state
        super().__setstate__((version, shape, dtype.value, fortran, data))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.view(np.ndarray).__reduce_ex__(protocol)


def _reconstruct(kind: Any, shape: Any, code: Any) -> _Array:
    return np.zeros(0).view(_Array)


def _scalar(dtype: _DType, data: Any) -> Any:
    data = data.encode('latin1') if isinstance(data, str) else data
    return np.frombuffer(data, dtype.value)[0] if data else dtype.value.type()


def _frombuffer(data: Any, dtype: _DType, shape: Any, order: Any) -> np.ndarray:
    return np.frombuffer(data, dtype.value).reshape(shape, order=order)


def _getattr(owner: Any, name: str) -> Callable:
    if (owner, name) not in METHODS:
        raise pickle.UnpicklingError(f'builtins.getattr must not be called for {name!r}')
    return METHODS[owner, name]


# numpy 2 renamed numpy.core, Python 3 __builtin__; files have the names of the day.
PLAIN: Dict[str, Callable] = {
    'numpy.dtype': lambda *args: _DType(*args),
    'numpy.ndarray': lambda *args: _Array(*args),
    '_codecs.encode': codecs.encode,
}
for core in ('numpy.core', 'numpy._core'):
    PLAIN[f'{core}.multiarray._reconstruct'] = _reconstruct
    PLAIN[f'{core}.multiarray.scalar'] = _scalar
    PLAIN[f'{core}.numeric._frombuffer'] = _frombuffer
for module in ('builtins', '__builtin__'):
    PLAIN.update({f'{module}.{kind.__name__}': kind for kind in (bytes, set, frozenset, slice)})
OF_TRAINING: Dict[str, Callable] = {
    'builtins.getattr': _getattr,
    '__builtin__.getattr': _getattr,
    'pathlib.PosixPath': PosixPath,
    'pathlib._local.PosixPath': PosixPath,  # in Python 3.13
}


def _allowed() -> Iterator[Any]:
    """Yield what torch's reader may find in a file."""
    yield from (Namespace, ConfigDict, HistoryBuffer, OneCycleParamScheduler, _Array, _DType)
    for name, function in {**PLAIN, **OF_TRAINING}.items():

        def call(*args: Any, function: Callable = function) -> Any:
            return function(*args)

        # torch matches by these names; torch 2.4 and 2.5 take no other.
        call.__module__, _, call.__name__ = name.rpartition('.')
        call.__qualname__ = call.__name__
        yield call


ALLOWED = tuple(_allowed())
_LOCK = threading.RLock()  # torch shares one list of allowed globals between all threads


@contextmanager
def safe_globals() -> Iterator[None]:
    """Let ``torch.load(weights_only=True)`` read training state inside the block.

    It then accepts, besides tensors and plain types, numpy numbers and arrays,
    ``argparse.Namespace``, paths, and MMEngine's configs, logs and scheduler states.
    """
    with _LOCK:
        before = list(torch.serialization.get_safe_globals())
        torch.serialization.add_safe_globals(list(ALLOWED))
        try:
            yield
        finally:  # torch 2.4 has neither safe_globals nor a way to remove single names
            torch.serialization.clear_safe_globals()
            torch.serialization.add_safe_globals(before)


class PlainUnpickler(pickle.Unpickler):
    """Unpickler that accepts only plain types and numpy numbers and arrays.

    Raises:
        pickle.UnpicklingError: on ``load``, if the pickle contains anything else.
    """

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ('collections', 'OrderedDict'):
            return OrderedDict
        if f'{module}.{name}' not in PLAIN:
            raise pickle.UnpicklingError(f'the code of {module}.{name} would have to run')
        return PLAIN[f'{module}.{name}']
