"""Atomic writing of checkpoint files."""

import io
import json
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator, Union

import torch
from safetensors.torch import save

from ..utils import WriteError, atomic_write
from .errors import CheckpointError
from .meta import plain_meta

PathLike = Union[str, Path]
SAFETENSORS = '.safetensors'
SUFFIXES = ('.pth', '.pt', SAFETENSORS)


@contextmanager
def atomic_checkpoint(path: Path) -> Iterator[Path]:
    """Write a file with :func:`mmlinattn.utils.atomic_file`; raise CheckpointError on failure."""
    try:
        with atomic_write(path) as temporary:
            yield temporary
    except WriteError as error:
        raise CheckpointError(error) from error


def save_checkpoint(path: PathLike, state_dict: Mapping, meta: Mapping) -> None:
    """Write a checkpoint atomically.

    A ``.pth`` or ``.pt`` file has MMEngine's layout ``dict(state_dict=..., meta=...)``. MMEngine
    reads a ``.safetensors`` file as ``safe://PATH`` only.

    Args:
        path: the file, overwritten if it exists; missing folders are created.
        state_dict: name -> tensor.
        meta: meta information; entries that are not of plain types are omitted.

    Raises:
        CheckpointError: ``path`` has another suffix, is not a regular file, or cannot be written.

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
    if path.exists() and not path.is_file():
        raise CheckpointError(f'{path} is there and is no regular file')
    # Cloned because torch.save writes the complete storage behind a view.
    state_dict = {
        name: value.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, value in state_dict.items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == SAFETENSORS:
        content = save(state_dict, metadata={'meta': json.dumps(plain_meta(meta))})
    else:
        buffer = io.BytesIO()
        torch.save(dict(state_dict=state_dict, meta=plain_meta(meta)), buffer)
        content = buffer.getbuffer()
    with atomic_checkpoint(path) as temporary:
        temporary.write_bytes(content)
