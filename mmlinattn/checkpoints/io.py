"""Reads and writes checkpoint files without ever running code that a file carries."""

import json
import os
import pickle
import re
import warnings
from argparse import Namespace
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, BinaryIO, Callable, ContextManager, Dict, List, Tuple, Union

import numpy as np
import torch
from mmengine.registry import PARAM_SCHEDULERS
from mmengine.utils import digit_version
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from .errors import CheckpointError

PathLike = Union[str, Path]

# MMEngine and MMCV write ``state_dict``, DeiT's scripts (RALA, SMCA, ...) ``model`` and perhaps
# the moving average ``model_ema`` beside it. Published accuracies of these are of ``model``.
SECTIONS = ('state_dict', 'model', 'model_ema')
SAFETENSORS = '.safetensors'
SUFFIXES = ('.pth', '.pt', SAFETENSORS)


def load_state_dict(path: PathLike) -> Tuple[Dict[str, Tensor], Dict[str, Any]]:
    """Reads the weights and the meta information of a checkpoint file.

    ``.safetensors`` files are read as such, all others as written by ``torch.save``, with an
    unpickler that knows tensors, plain types, numpy numbers and arrays and
    ``argparse.Namespace`` and refuses the rest. The weights are looked for under
    ``state_dict``, then ``model``, then ``model_ema``, then at top level.

    Args:
        path: the file.

    Returns:
        name -> tensor, on the CPU, without ``module.`` in front; and the file's ``meta`` reduced
        to plain types, with the old ``CLASSES`` and ``PALETTE`` as
        ``dataset_meta=dict(classes=..., palette=...)``.

    Raises:
        FileNotFoundError: no such file.
        CheckpointError: an incomplete file, no checkpoint, one that needs to run code to be
            read, or one without tensors.

    Example:
        >>> import os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), 'model.pth')
        >>> torch.save(dict(model={'module.fc.weight': torch.zeros(2, 3)}), path)
        >>> state_dict, meta = load_state_dict(path)
        >>> {name: tuple(value.shape) for name, value in state_dict.items()}
        {'fc.weight': (2, 3)}
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f'checkpoint file {path} does not exist')
    if path.suffix == SAFETENSORS:
        weights, meta = _read_safetensors(path)
    else:
        weights, meta = _find_weights(_read_pickle(path))
    tensors = {k: v for k, v in weights.items() if isinstance(v, Tensor)}
    if not tensors:
        raise CheckpointError(f'{path} has no tensors, neither at top level nor under {SECTIONS}')
    if len(tensors) < len(weights):
        rest = [str(name) for name in weights if name not in tensors]
        warnings.warn(f'{path}: ignored entries that are no tensors: {rest[:5]}', stacklevel=2)
    return {re.sub(r'^module\.', '', str(k)): v for k, v in tensors.items()}, plain_meta(meta)


def save_checkpoint(path: PathLike, state_dict: Mapping, meta: Mapping) -> None:
    """Writes a checkpoint, whole or not at all.

    A ``.pth`` or ``.pt`` file has MMEngine's form ``dict(state_dict=..., meta=...)``; MMEngine
    itself cannot read the ``.safetensors`` form.

    Args:
        path: the file, overwritten if it is there; missing folders are made.
        state_dict: name -> tensor.
        meta: kept as far as it is of plain types.

    Raises:
        CheckpointError: a path with another suffix, or of something that is no regular file.

    Example:
        >>> import os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), 'model.pth')
        >>> save_checkpoint(path, {'fc.bias': torch.zeros(3)}, dict(epoch=1))
        >>> load_state_dict(path)[1]
        {'epoch': 1}
    """
    path = Path(path).expanduser()
    if path.suffix not in SUFFIXES:
        raise CheckpointError(f'{path}: the name of a checkpoint must end in one of {SUFFIXES}')
    if path.exists() and not path.is_file():
        raise CheckpointError(f'{path} is there and is no regular file')
    # A copy holds just its own values: torch.save writes the whole storage behind a view.
    state_dict = {
        name: value.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, value in state_dict.items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f'.{path.name}.{os.getpid()}.tmp')
    try:
        if path.suffix == SAFETENSORS:
            save_file(state_dict, temporary, metadata=dict(meta=json.dumps(plain_meta(meta))))
        else:
            torch.save(dict(state_dict=state_dict, meta=plain_meta(meta)), temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def plain_meta(meta: Mapping) -> Dict[str, Any]:
    """The entries of plain types (None, bool, int, float, str and containers of these).

    Numpy numbers, numpy arrays, tensors and namespaces are turned into these; the rest is left
    out. ``CLASSES`` and ``PALETTE`` become ``dataset_meta``.

    Example:
        >>> plain_meta(dict(epoch=np.int64(3), CLASSES=('cat', 'dog'), model=object()))
        {'epoch': 3, 'dataset_meta': {'classes': ('cat', 'dog')}}
    """
    meta = _plain(meta)
    old = {name.lower(): meta.pop(name) for name in ('CLASSES', 'PALETTE') if name in meta}
    old = {name: value for name, value in old.items() if value is not None}
    if old:
        meta['dataset_meta'] = dict(old, **(meta.get('dataset_meta') or {}))
    return meta


_NOT_PLAIN = object()


def _plain(value: Any) -> Any:
    if isinstance(value, (np.generic, np.ndarray, Tensor)):
        value = value.tolist()
    if isinstance(value, Namespace):
        value = vars(value)
    if isinstance(value, Mapping):
        items = ((key, _plain(item)) for key, item in value.items())
        return {
            key if isinstance(key, (bool, int, float, str)) else str(key): item
            for key, item in items
            if item is not _NOT_PLAIN
        }
    if isinstance(value, (list, tuple, set, frozenset)):
        items = [item for item in map(_plain, value) if item is not _NOT_PLAIN]
        return tuple(items) if isinstance(value, tuple) else items
    return value if value is None or type(value) in (bool, int, float, str) else _NOT_PLAIN


class _Placeholder:
    """Stands in for an object of MMEngine's log or schedulers: takes any state, does nothing."""

    def __init__(self, *args: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass


def _harmless_globals() -> List[Union[Callable, Tuple[Callable, str]]]:
    """What a checkpoint may name besides tensors: data, nothing that acts.

    MMEngine's own list has ``getattr``, with which a file could reach anything; its training
    checkpoints need it for the log and schedulers only, which nobody reads here.
    """
    numbers = [np.dtype(code) for code in '?bhilqBHILQefdFD']
    allowed: list = [Namespace, np.dtype, np.ndarray, *{type(dtype) for dtype in numbers}]
    for module in ('numpy.core.multiarray', 'numpy._core.multiarray'):
        allowed.append((np.ndarray.__reduce__(np.zeros(0))[0], f'{module}._reconstruct'))
        allowed.append((np.float64(0).__reduce__()[0], f'{module}.scalar'))
    inert = ['mmengine.logging.history_buffer.HistoryBuffer', 'builtins.getattr']
    # The state of some schedulers refers to their class.
    inert += [f'{c.__module__}.{c.__qualname__}' for c in PARAM_SCHEDULERS.module_dict.values()]
    allowed += [(_Placeholder, name) for name in inert]
    return allowed


def _harmless() -> ContextManager:
    # Before torch 2.6 the list cannot be extended by name: files with such content are refused.
    if digit_version(torch.__version__) < digit_version('2.6'):
        return nullcontext()
    return torch.serialization.safe_globals(_harmless_globals())


def _read_pickle(path: Path) -> Any:
    with path.open('rb') as file:
        return _unpickle(file, path)


def _unpickle(file: BinaryIO, path: Path) -> Any:
    try:
        with _harmless():
            return torch.load(file, map_location='cpu', weights_only=True)
    except Exception as error:
        named = re.search(r'GLOBAL (\S+) (?:was not|whose module)', str(error))
        if isinstance(error, pickle.UnpicklingError) and named:
            raise CheckpointError(
                f'{path} is refused: to read it the code of {named[1]} would have to run'
            ) from error
        # torch raises RuntimeError, OSError, EOFError, KeyError, ... on damaged files.
        raise CheckpointError(f'{path} is incomplete or no checkpoint{_because(error)}') from error


def _because(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f' ({type(error).__name__}: {lines[0][:120]})' if lines else f' ({type(error).__name__})'


def _read_safetensors(path: Path) -> Tuple[Dict[str, Tensor], Mapping]:
    try:
        with safe_open(path, framework='pt', device='cpu') as file:
            meta = file.metadata() or {}
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise CheckpointError(f'{path} is incomplete or no checkpoint{_because(error)}') from error
    try:
        own = json.loads(meta['meta'])
    except (KeyError, json.JSONDecodeError):
        own = None
    return weights, own if isinstance(own, dict) else meta


def _find_weights(checkpoint: Any) -> Tuple[Mapping, Mapping]:
    if not isinstance(checkpoint, Mapping):
        return {}, {}
    meta = checkpoint.get('meta')
    meta = meta if isinstance(meta, Mapping) else {}
    for section in SECTIONS:
        weights = checkpoint.get(section)
        if isinstance(weights, Mapping) and any(isinstance(v, Tensor) for v in weights.values()):
            return weights, meta
    return checkpoint, meta
