"""What a file may name besides tensors and plain types: data, nothing that acts.

While a file is read, its names stand for objects of this module only: functions that check what
they are given, and frozen classes that keep it. Real numpy arrays, logs and namespaces are made of
them afterwards, by :func:`unwrap`.
"""

import argparse
import codecs
import pickle
import re
import threading
from collections import OrderedDict
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, Optional, Sequence, Tuple

import numpy as np
import torch
from mmengine.logging import HistoryBuffer
from mmengine.optim.scheduler import param_scheduler

# Numbers, bytes and text: no objects, which are pointers, and no fields.
NUMPY_TYPES = re.compile(r'[<>=|]?[?bhilqBHILQefdFDgGSUuc]\d*')
# Functions that a training keeps in its state, by class and name.
ONE_CYCLE = 'OneCycleParamScheduler'
KEPT_FUNCTIONS: Dict[Tuple[str, str], Optional[Callable]] = {
    (ONE_CYCLE, name): getattr(getattr(param_scheduler, ONE_CYCLE), name)
    for name in ('_annealing_cos', '_annealing_linear')
}
# HistoryBuffer sets these itself.
KEPT_FUNCTIONS.update({('HistoryBuffer', name): None for name in ('min', 'max', 'mean', 'current')})


class _Named:
    """Stands where a file names ``name``: calls ``function``, or refuses to be called.

    torch goes by ``__module__`` and ``__name__`` of what it may hand out. Nothing can be set.
    """

    __slots__ = ('__name__', '__qualname__', 'function', 'module', 'stands_for')
    __name__: str
    function: Optional[Callable]
    stands_for: Any
    __module__ = property(lambda self: self.module)

    def __init__(self, name: str, function: Optional[Callable] = None, stands_for: Any = None):
        module, _, last = name.rpartition('.')
        values = (last, last, function, module, stands_for)
        for slot, value in zip(self.__slots__, values):
            object.__setattr__(self, slot, value)

    def __call__(self, *args: Any) -> Any:
        if self.function is None:
            raise pickle.UnpicklingError(f'{self.__module__}.{self.__name__} must not be called')
        return self.function(*args)

    def __setattr__(self, name: str, value: Any) -> None:
        raise pickle.UnpicklingError(f'{self.__module__}.{self.__name__} must not be changed')


class _Frozen(type):
    """Class of stand-ins: a file cannot set anything on them, only on what it makes of them."""

    def __setattr__(cls, name: str, value: Any) -> None:
        raise pickle.UnpicklingError(f'{cls.__module__}.{cls.__qualname__} must not be changed')


def _stand_in(name: str) -> Callable[[type], type]:
    """Give a frozen class the name that files know the real one by."""
    module, _, last = name.rpartition('.')

    def rename(cls: type) -> type:
        for key, value in (('__module__', module), ('__name__', last), ('__qualname__', last)):
            type.__setattr__(cls, key, value)
        return cls

    return rename


class _DType(metaclass=_Frozen):
    """Of ``numpy.dtype``: a type of numbers, bytes or text."""

    __slots__ = ('value',)

    def __init__(self, code: Any, align: Any = False, copy: Any = False) -> None:
        if not (isinstance(code, str) and NUMPY_TYPES.fullmatch(code)):
            raise pickle.UnpicklingError(f'numpy.dtype({code!r}) must not be called')
        self.value = np.dtype(code)

    def __setstate__(self, state: Sequence) -> None:
        _, order, *parts = state[:5]  # of parts, names and fields, which numbers do not have
        if order not in ('<', '>', '|', '=') or parts != [None] * 3:
            raise pickle.UnpicklingError(f'numpy.dtype of {state!r} must not be called')
        if order in '<>':
            self.value = self.value.newbyteorder(order)


class _Array(metaclass=_Frozen):
    """Of a numpy array: made empty, then filled by its state."""

    __slots__ = ('value',)

    def __init__(self) -> None:
        self.value = np.zeros(0)

    def __setstate__(self, state: Sequence) -> None:
        _, shape, dtype, fortran, data = state
        self.value = _filled(data, dtype, shape, 'F' if fortran else 'C')


@_stand_in('mmengine.logging.history_buffer.HistoryBuffer')
class _Log(metaclass=_Frozen):
    """Of MMEngine's log of a number."""

    __slots__ = ('state',)

    def __setstate__(self, state: dict) -> None:
        self.state = dict(state)


@_stand_in('argparse.Namespace')
class _Namespace(metaclass=_Frozen):
    """Of the options of a command line."""

    __slots__ = ('state',)

    def __setstate__(self, state: dict) -> None:
        self.state = dict(state)


def _filled(data: Any, dtype: Any, shape: Any, order: Any = 'C') -> np.ndarray:
    if not isinstance(dtype, _DType) or isinstance(data, (list, tuple)):
        raise pickle.UnpicklingError('a numpy array of objects must not be called')
    data = data.encode('latin1') if isinstance(data, str) else bytes(data)
    shape = shape if isinstance(shape, tuple) else (shape,)
    if not data and 0 in (dtype.value.itemsize, *shape):
        return np.zeros(shape, dtype.value)
    return (
        np.frombuffer(data, dtype.value).reshape(shape, order='F' if order == 'F' else 'C').copy()
    )


def _from_buffer(data: Any, dtype: Any, shape: Any, order: Any = 'C') -> _Array:
    array = _Array()
    array.value = _filled(data, dtype, shape, order)
    return array


def _reconstruct(kind: Any, shape: Any, code: Any) -> _Array:
    return _Array()


def _scalar(dtype: Any, data: Any = b'') -> Any:
    return _filled(data, dtype, ())[()]


def _encode(text: Any, encoding: Any = 'latin1') -> bytes:
    # How pickles of protocol 2 write bytes. Other codecs could be slow, or write elsewhere.
    if encoding != 'latin1':
        raise pickle.UnpicklingError('_codecs.encode must not be called')
    return codecs.encode(text, encoding)


def _method(owner: Any, name: Any) -> _Named:
    key = getattr(owner, '__qualname__', None), name
    if not isinstance(owner, (_Named, _Frozen)) or key not in KEPT_FUNCTIONS:
        raise pickle.UnpicklingError('builtins.getattr must not be called')
    return _Named('.'.join(key), stands_for=KEPT_FUNCTIONS[key])


def _data() -> Iterator[Any]:
    """Stand-ins for what holds data."""
    yield from (OrderedDict, _Namespace)
    yield _Named('numpy.ndarray')
    yield _Named('numpy.dtype', _DType)
    # numpy 2 moved numpy.core; a file carries the name of its day.
    for core in ('numpy.core', 'numpy._core'):
        yield _Named(f'{core}.multiarray._reconstruct', _reconstruct)
        yield _Named(f'{core}.multiarray.scalar', _scalar)
        yield _Named(f'{core}.numeric._frombuffer', _from_buffer)
    yield _Named('_codecs.encode', _encode)
    # Configs get into the names of classes and colours of a data set.
    yield _Named('mmengine.config.config.ConfigDict', lambda items=(): dict(items))
    yield _Named('collections.deque', lambda items=(), maxlen=None: list(items))
    for pathlib in ('pathlib', 'pathlib._local'):  # as Python 3.13 says
        for path in ('PosixPath', 'PurePosixPath'):
            yield _Named(f'{pathlib}.{path}', lambda *parts: '/'.join(map(str, parts)))
    for builtins in ('builtins', '__builtin__'):
        yield _Named(f'{builtins}.bytes', lambda: b'')
        yield _Named(f'{builtins}.set', lambda items=(): set(items))
        yield _Named(f'{builtins}.frozenset', lambda items=(): frozenset(items))
        yield _Named(f'{builtins}.slice', lambda *ends: slice(*ends))


def _of_trainings() -> Iterator[Any]:
    yield _Log
    # What of these is made while reading, and then filled.
    yield from (_DType, _Array)
    # This scheduler keeps a function of its class.
    for module in ('param_scheduler', 'lr_scheduler', 'momentum_scheduler'):
        yield _Named(f'mmengine.optim.scheduler.{module}.{ONE_CYCLE}')
    for builtins in ('builtins', '__builtin__'):
        yield _Named(f'{builtins}.getattr', _method)


# torch has one list of names for all threads.
_NAMES_LOCK = threading.RLock()


@contextmanager
def harmless_globals() -> Iterator[None]:
    """Within it ``torch.load(weights_only=True)`` reads what trainings write beside weights.

    That is numpy numbers and arrays, ``argparse.Namespace``, MMEngine's log and the state of its
    schedulers; :func:`unwrap` makes these of what is returned. One thread at a time.
    """
    with _NAMES_LOCK:
        # A copy: torch 2.4 returns the list that is added to below.
        before = list(torch.serialization.get_safe_globals())
        torch.serialization.add_safe_globals([*_data(), *_of_trainings()])
        try:
            yield
        finally:
            # torch 2.4 has no way to take single names back.
            torch.serialization.clear_safe_globals()
            torch.serialization.add_safe_globals(before)


def unwrap(content: Any) -> Any:
    """Real objects in place of stand-ins, inside dicts, lists and tuples; dicts and lists stay the
    objects that they are."""
    if isinstance(content, (_DType, _Array)):
        return content.value
    if isinstance(content, _Named):
        return content.stands_for
    if isinstance(content, _Namespace):
        return argparse.Namespace(**{str(k): v for k, v in unwrap(_state(content)).items()})
    if isinstance(content, _Log):
        state = unwrap(_state(content))
        parts = state.get('_log_history', ()), state.get('_count_history', ())
        return HistoryBuffer(*parts, max_length=int(state.get('max_length', 1000000)))
    if isinstance(content, dict):
        for key, value in content.items():
            content[key] = unwrap(value)
    elif isinstance(content, list):
        content[:] = map(unwrap, content)
    elif isinstance(content, tuple) and type(content) is tuple:
        return tuple(map(unwrap, content))
    return content


def _state(stand_in: Any) -> dict:
    return getattr(stand_in, 'state', {})


class PlainUnpickler(pickle.Unpickler):
    """Reads pickles of plain types and numpy numbers and arrays, and refuses all others.

    Raises:
        pickle.UnpicklingError: on ``load``, for a pickle that names anything else.

    Example:
        >>> import io
        >>> PlainUnpickler(io.BytesIO(pickle.dumps({'boxes': np.zeros(2)}))).load()
        {'boxes': array([0., 0.])}
        >>> PlainUnpickler(io.BytesIO(pickle.dumps(print))).load()
        Traceback (most recent call last):
            ...
        _pickle.UnpicklingError: the code of builtins.print would have to run
    """

    _allowed: Dict[str, Any] = {f'{i.__module__}.{i.__qualname__}': i for i in _data()}

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self._allowed[f'{module}.{name}']
        except KeyError:
            raise pickle.UnpicklingError(f'the code of {module}.{name} would have to run') from None

    def load(self) -> Any:
        return unwrap(super().load())
