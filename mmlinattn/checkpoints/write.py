"""Atomic writing of checkpoint files."""

import io
import json
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Union

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from ..utils import atomic_write
from .errors import CheckpointError

PathLike = Union[str, Path]
SAFETENSORS = '.safetensors'
SUFFIXES = ('.pth', '.pt', SAFETENSORS)


def save_checkpoint(path: PathLike, state_dict: Mapping, meta: Mapping) -> None:
    """Write a checkpoint atomically.

    A ``.pth`` or ``.pt`` file has MMEngine's layout ``dict(state_dict=..., meta=...)``. MMEngine
    reads a ``.safetensors`` file as ``safe://PATH`` only.

    Args:
        path: the file, overwritten if it exists; missing folders are created.
        state_dict: name -> tensor.
        meta: meta information; entries that are not of plain types are omitted.

    Raises:
        CheckpointError: ``path`` has another suffix.
        mmlinattn.utils.WriteError: it is not a regular file, or cannot be written.

    Example:
        >>> import os, tempfile
        >>> from mmlinattn.checkpoints import load_state_dict
        >>> path = os.path.join(tempfile.mkdtemp(), 'model.pth')
        >>> save_checkpoint(path, {'fc.bias': torch.zeros(3)}, dict(epoch=1))
        >>> load_state_dict(path)[1]
        {'epoch': 1}
    """
    path = Path(path).expanduser()
    if path.suffix not in SUFFIXES:
        raise CheckpointError(f'{path}: the name of a checkpoint must end in one of {SUFFIXES}')
    # Cloned because torch.save writes the complete storage behind a view.
    state_dict = {
        name: value.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, value in state_dict.items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == SAFETENSORS:
        content = save(state_dict, metadata={'meta': json.dumps(plain(meta))})
    else:
        buffer = io.BytesIO()
        torch.save(dict(state_dict=state_dict, meta=plain(meta)), buffer)
        content = buffer.getbuffer()
    with atomic_write(path) as temporary:
        temporary.write_bytes(content)


_NOT_PLAIN = object()


def plain(value: Any) -> Any:
    """Return the parts of a value of plain types: None, bool, int, float, str, their containers.

    Numpy numbers, numpy arrays, tensors and namespaces are converted to plain types; other
    entries are omitted.
    """
    if isinstance(value, (np.generic, np.ndarray, Tensor)):
        value = value.tolist()
    if isinstance(value, Namespace):
        value = vars(value)
    if isinstance(value, Mapping):
        items = ((key, plain(item)) for key, item in value.items())
        return {
            key if isinstance(key, (bool, int, float, str)) else str(key): item
            for key, item in items
            if item is not _NOT_PLAIN
        }
    if isinstance(value, (list, tuple, set, frozenset)):
        items = [item for item in map(plain, value) if item is not _NOT_PLAIN]
        return tuple(items) if isinstance(value, tuple) else items
    return value if value is None or type(value) in (bool, int, float, str) else _NOT_PLAIN
