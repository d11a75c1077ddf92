"""Safe unpickling of tensors, plain types and a fixed list of data types.

While a file is read, its globals resolve only to stubs of this module: functions that check
their arguments, and frozen classes that store them. :func:`unwrap` then converts the stubs to
numpy arrays, logs and namespaces.
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

# Numbers, bytes and text. Object dtypes hold pointers, so they and structured dtypes are excluded.
NUMPY_TYPES = re.compile(r'[<>=|]?[?bhilqBHILQefdFDgGSUuc]\d*')
# Functions that training state may contain, by class and name.
ONE_CYCLE = 'OneCycleParamScheduler'
ALLOWED_METHODS: Dict[Tuple[str, str], Optional[Callable]] = {
    (ONE_CYCLE, name): getattr(getattr(param_scheduler, ONE_CYCLE), name)
    for name in ('_annealing_cos', '_annealing_linear')
}
# HistoryBuffer sets these again when it is created.
ALLOWED_METHODS.update(
    {('HistoryBuffer', name): None for name in ('min', 'max', 'mean', 'current')}
)


class _GlobalStub:
    """Stub of the global ``name``: a call runs ``function``, or raises if there is none.

    torch matches allowed globals by ``__module__`` and ``__name__``. No attribute can be set.
    """

    __slots__ = ('__name__', '__qualname__', 'function', 'module', 'original')
    __name__: str
    function: Optional[Callable]
    original: Any
    __module__ = property(lambda self: self.module)

    def __init__(self, name: str, function: Optional[Callable] = None, original: Any = None):
        module, _, last = name.rpartition('.')
        values = (last, last, function, module, original)
        for slot, value in zip(self.__slots__, values):
            object.__setattr__(self, slot, value)

    def __call__(self, *args: Any) -> Any:
        if self.function is None:
            raise pickle.UnpicklingError(f'{self.__module__}.{self.__name__} must not be called')
        return self.function(*args)

    def __setattr__(self, name: str, value: Any) -> None:
        raise pickle.UnpicklingError(f'{self.__module__}.{self.__name__} must not be changed')


class _ReadOnlyClass(type):
    """Metaclass of stubs: a file can set attributes of their instances, not of the classes."""

    def __setattr__(cls, name: str, value: Any) -> None:
        raise pickle.UnpicklingError(f'{cls.__module__}.{cls.__qualname__} must not be changed')


def _named_as(name: str) -> Callable[[type], type]:
    """Return a decorator that gives a stub the name of the real class."""
    module, _, last = name.rpartition('.')

    def rename(cls: type) -> type:
        for key, value in (('__module__', module), ('__name__', last), ('__qualname__', last)):
            type.__setattr__(cls, key, value)
        return cls

    return rename


class _DTypeStub(metaclass=_ReadOnlyClass):
    """Stub of ``numpy.dtype``, for numbers, bytes and text."""

    __slots__ = ('value',)

    def __init__(self, code: Any, align: Any = False, copy: Any = False) -> None:
        if not (isinstance(code, str) and NUMPY_TYPES.fullmatch(code)):
            raise pickle.UnpicklingError(f'numpy.dtype({code!r}) must not be called')
        self.value = np.dtype(code)

    def __setstate__(self, state: Sequence) -> None:
        _, order, *parts = state[:5]  # subarray, names and fields: None for plain dtypes
        if order not in ('<', '>', '|', '=') or parts != [None] * 3:
            raise pickle.UnpicklingError(f'numpy.dtype of {state!r} must not be called')
        if order in '<>':
            self.value = self.value.newbyteorder(order)


class _ArrayStub(metaclass=_ReadOnlyClass):
    """Stub of a numpy array, created empty and filled by ``__setstate__``."""

    __slots__ = ('value',)

    def __init__(self) -> None:
        self.value = np.zeros(0)

    def __setstate__(self, state: Sequence) -> None:
        _, shape, dtype, fortran, data = state
        self.value = _array_of(data, dtype, shape, 'F' if fortran else 'C')


class _StateStub(metaclass=_ReadOnlyClass):
    """Base class of the stubs of objects that are a dict of attributes."""

    __slots__ = ('state',)

    def __setstate__(self, state: dict) -> None:
        self.state = dict(state)


@_named_as('mmengine.logging.history_buffer.HistoryBuffer')
class _HistoryBufferStub(_StateStub):
    __slots__ = ()


@_named_as('argparse.Namespace')
class _NamespaceStub(_StateStub):
    __slots__ = ()


def _array_of(data: Any, dtype: Any, shape: Any, order: Any = 'C') -> np.ndarray:
    if not isinstance(dtype, _DTypeStub) or isinstance(data, (list, tuple)):
        raise pickle.UnpicklingError('a numpy array of objects must not be called')
    data = data.encode('latin1') if isinstance(data, str) else bytes(data)
    shape = shape if isinstance(shape, tuple) else (shape,)
    if not data and 0 in (dtype.value.itemsize, *shape):
        return np.zeros(shape, dtype.value)
    return (
        np.frombuffer(data, dtype.value).reshape(shape, order='F' if order == 'F' else 'C').copy()
    )


def _frombuffer(data: Any, dtype: Any, shape: Any, order: Any = 'C') -> _ArrayStub:
    array = _ArrayStub()
    array.value = _array_of(data, dtype, shape, order)
    return array


def _reconstruct(kind: Any, shape: Any, code: Any) -> _ArrayStub:
    return _ArrayStub()


def _scalar(dtype: Any, data: Any = b'') -> Any:
    return _array_of(data, dtype, ())[()]


def _encode(text: Any, encoding: Any = 'latin1') -> bytes:
    # Pickle protocol 2 writes bytes this way. Other codecs could be slow or have side effects.
    if encoding != 'latin1':
        raise pickle.UnpicklingError('_codecs.encode must not be called')
    return codecs.encode(text, encoding)


def _method(owner: Any, name: Any) -> _GlobalStub:
    key = getattr(owner, '__qualname__', None), name
    if not isinstance(owner, (_GlobalStub, _ReadOnlyClass)) or key not in ALLOWED_METHODS:
        raise pickle.UnpicklingError('builtins.getattr must not be called')
    return _GlobalStub('.'.join(key), original=ALLOWED_METHODS[key])


def _data_globals() -> Iterator[Any]:
    """Yield the stubs of data types."""
    yield from (OrderedDict, _NamespaceStub)
    yield _GlobalStub('numpy.ndarray')
    yield _GlobalStub('numpy.dtype', _DTypeStub)
    # numpy 2 renamed numpy.core; files have the name of the numpy that wrote them.
    for core in ('numpy.core', 'numpy._core'):
        yield _GlobalStub(f'{core}.multiarray._reconstruct', _reconstruct)
        yield _GlobalStub(f'{core}.multiarray.scalar', _scalar)
        yield _GlobalStub(f'{core}.numeric._frombuffer', _frombuffer)
    yield _GlobalStub('_codecs.encode', _encode)
    # The classes and palette of a data set can be config objects.
    yield _GlobalStub('mmengine.config.config.ConfigDict', lambda items=(): dict(items))
    yield _GlobalStub('collections.deque', lambda items=(), maxlen=None: list(items))
    for pathlib in ('pathlib', 'pathlib._local'):  # the latter in Python 3.13
        for path in ('PosixPath', 'PurePosixPath'):
            yield _GlobalStub(f'{pathlib}.{path}', lambda *parts: '/'.join(map(str, parts)))
    for builtins in ('builtins', '__builtin__'):
        yield _GlobalStub(f'{builtins}.bytes', lambda: b'')
        yield _GlobalStub(f'{builtins}.set', lambda items=(): set(items))
        yield _GlobalStub(f'{builtins}.frozenset', lambda items=(): frozenset(items))
        yield _GlobalStub(f'{builtins}.slice', lambda *ends: slice(*ends))


def _training_globals() -> Iterator[Any]:
    yield _HistoryBufferStub
    # Instances of these are created while reading, then filled by __setstate__.
    yield from (_DTypeStub, _ArrayStub)
    # The state of this scheduler contains a function of its class.
    for module in ('param_scheduler', 'lr_scheduler', 'momentum_scheduler'):
        yield _GlobalStub(f'mmengine.optim.scheduler.{module}.{ONE_CYCLE}')
    for builtins in ('builtins', '__builtin__'):
        yield _GlobalStub(f'{builtins}.getattr', _method)


# torch shares one list of allowed globals between all threads.
_GLOBALS_LOCK = threading.RLock()


@contextmanager
def safe_globals() -> Iterator[None]:
    """Let ``torch.load(weights_only=True)`` read training state inside the block.

    It accepts numpy numbers and arrays, ``argparse.Namespace``, MMEngine's HistoryBuffer and the
    state of its schedulers as stubs, which :func:`unwrap` converts. One thread at a time.
    """
    with _GLOBALS_LOCK:
        # Copied because torch 2.4 returns the list itself, which the next line extends.
        before = list(torch.serialization.get_safe_globals())
        torch.serialization.add_safe_globals([*_data_globals(), *_training_globals()])
        try:
            yield
        finally:
            # torch 2.4 cannot remove single names.
            torch.serialization.clear_safe_globals()
            torch.serialization.add_safe_globals(before)


def unwrap(content: Any) -> Any:
    """Replace stubs by real objects inside dicts, lists and tuples.

    Dicts and lists are modified in place.
    """
    if isinstance(content, (_DTypeStub, _ArrayStub)):
        return content.value
    if isinstance(content, _GlobalStub):
        return content.original
    if isinstance(content, _NamespaceStub):
        return argparse.Namespace(**{str(k): v for k, v in unwrap(_state_of(content)).items()})
    if isinstance(content, _HistoryBufferStub):
        state = unwrap(_state_of(content))
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


def _state_of(stub: Any) -> dict:
    return getattr(stub, 'state', {})


class PlainUnpickler(pickle.Unpickler):
    """Unpickler that accepts only plain types and numpy numbers and arrays.

    Raises:
        pickle.UnpicklingError: on ``load``, if the pickle contains anything else.

    Example:
        >>> import io
        >>> PlainUnpickler(io.BytesIO(pickle.dumps({'boxes': np.zeros(2)}))).load()
        {'boxes': array([0., 0.])}
        >>> PlainUnpickler(io.BytesIO(pickle.dumps(print))).load()
        Traceback (most recent call last):
            ...
        _pickle.UnpicklingError: the code of builtins.print would have to run
    """

    _allowed: Dict[str, Any] = {f'{i.__module__}.{i.__qualname__}': i for i in _data_globals()}

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self._allowed[f'{module}.{name}']
        except KeyError:
            raise pickle.UnpicklingError(f'the code of {module}.{name} would have to run') from None

    def load(self) -> Any:
        return unwrap(super().load())
