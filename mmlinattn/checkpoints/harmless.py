"""What a file may name besides tensors and plain types: data, nothing that acts."""

import codecs
import pickle
from argparse import Namespace
from collections import OrderedDict
from contextlib import contextmanager
from types import FunctionType
from typing import Any, Callable, Dict, Iterator, Optional

import numpy as np
import torch
from mmengine.logging import HistoryBuffer
from mmengine.registry import PARAM_SCHEDULERS


class _Named:
    """Stands where a file names ``name``: calls ``function``, or refuses to be called.

    torch goes by ``__module__`` and ``__name__`` of what it is allowed to hand out.
    """

    def __init__(self, name: str, function: Optional[Callable] = None, stands_for: Any = None):
        self.__module__, _, self.__name__ = name.rpartition('.')
        self.__qualname__ = self.__name__
        self.function = function
        self.stands_for = stands_for

    def __call__(self, *args: Any) -> Any:
        if self.function is None:
            raise pickle.UnpicklingError(f'{self.__module__}.{self.__name__} must not be called')
        return self.function(*args)


def _encode(text: str, encoding: str) -> bytes:
    # How pickles of protocol 2 write bytes. Other codecs could be slow, or write elsewhere.
    if encoding != 'latin1':
        raise pickle.UnpicklingError(f'codecs.encode to {encoding!r}')
    return codecs.encode(text, encoding)


def _method(owner: Any, name: str) -> FunctionType:
    """A function of MMEngine's log or of a scheduler, to keep and not to call.

    MMEngine's own list has the real ``getattr``, with which a file reaches anything.
    """
    owner = owner.stands_for if isinstance(owner, _Named) else owner
    if owner is HistoryBuffer or owner in PARAM_SCHEDULERS.module_dict.values():
        found = getattr(owner, name, None)
        if isinstance(found, FunctionType) and not name.startswith('__'):
            return found
    raise pickle.UnpicklingError(f'getattr({owner!r}, {name!r}) must not be called')


def _numpy() -> Iterator[Any]:
    yield from (np.ndarray, np.dtype)
    # Types of number types: their state is set when they are read.
    yield from {type(np.dtype(code)) for code in '?bhilqBHILQefdFDSU'}
    # numpy 2 moved numpy.core; a file carries the name of its day.
    for core in ('numpy.core', 'numpy._core'):
        yield _Named(f'{core}.multiarray._reconstruct', np.zeros(0).__reduce__()[0])
        yield _Named(f'{core}.multiarray.scalar', np.float64(0).__reduce__()[0])
        yield _Named(f'{core}.numeric._frombuffer', np.zeros(1).__reduce_ex__(5)[0])
    yield _Named('_codecs.encode', _encode)


def _of_trainings() -> Iterator[Any]:
    yield HistoryBuffer
    # Some schedulers keep a function of their class.
    for scheduler in set(PARAM_SCHEDULERS.module_dict.values()):
        name = f'{scheduler.__module__}.{scheduler.__qualname__}'
        yield _Named(name, stands_for=scheduler)
    for builtins in ('builtins', '__builtin__'):
        yield _Named(f'{builtins}.getattr', _method)


@contextmanager
def harmless_globals() -> Iterator[None]:
    """Within it ``torch.load(weights_only=True)`` reads what trainings write beside weights.

    That is numpy numbers and arrays, ``argparse.Namespace``, MMEngine's log and the state of its
    schedulers. Nothing that a file could name here does more than hold data.
    """
    names = [Namespace, *_numpy(), *_of_trainings()]
    before = torch.serialization.get_safe_globals()
    torch.serialization.add_safe_globals(names)
    try:
        yield
    finally:
        # torch 2.4 has no way to take single names back.
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(before)


def _name(item: Any) -> str:
    return f'{item.__module__}.{item.__qualname__}'


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

    _allowed: Dict[str, Any] = {_name(item): item for item in (OrderedDict, Namespace, *_numpy())}

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self._allowed[f'{module}.{name}']
        except KeyError:
            raise pickle.UnpicklingError(f'the code of {module}.{name} would have to run') from None
