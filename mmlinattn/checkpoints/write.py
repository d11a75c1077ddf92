"""Writes checkpoint files, whole or not at all."""

import hashlib
import io
import json
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator, Union

import torch
from safetensors.torch import save
from torch import Tensor

from ..utils import NotWritten, whole_file
from .errors import CheckpointError
from .meta import plain_meta

PathLike = Union[str, Path]
SAFETENSORS = '.safetensors'
# Entry of a safetensors file's metadata: the format itself has no check sums.
CHECK_SUM = 'sha256'
SUFFIXES = ('.pth', '.pt', SAFETENSORS)


@contextmanager
def whole_checkpoint(path: Path) -> Iterator[Path]:
    """:func:`mmlinattn.utils.whole_file`, whose error is a CheckpointError."""
    try:
        with whole_file(path) as temporary:
            yield temporary
    except NotWritten as error:
        raise CheckpointError(error) from error


def check_sum(state_dict: Mapping[str, Tensor]) -> str:
    """sha256 of names, types, shapes and values.

    Args:
        state_dict: name -> contiguous tensor on the CPU.
    """
    total = hashlib.sha256()
    for name in sorted(state_dict):
        value = state_dict[name]
        total.update(f'{name} {value.dtype} {tuple(value.shape)}\n'.encode())
        total.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def save_checkpoint(path: PathLike, state_dict: Mapping, meta: Mapping) -> None:
    """Write a checkpoint, whole or not at all.

    A ``.pth`` or ``.pt`` file has MMEngine's form ``dict(state_dict=..., meta=...)``; MMEngine
    alone, without this package's loader, cannot read the ``.safetensors`` form. Both have check
    sums, which :func:`read_checkpoint` looks at.

    Args:
        path: the file, overwritten if it is there; missing folders are made.
        state_dict: name -> tensor.
        meta: kept as far as it is of plain types.

    Raises:
        CheckpointError: a path with another suffix, of something that is no regular file, or
            that cannot be written.

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
    # A copy holds just its own values: torch.save writes the whole storage behind a view.
    state_dict = {
        name: value.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, value in state_dict.items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == SAFETENSORS:
        own = {'meta': json.dumps(plain_meta(meta)), CHECK_SUM: check_sum(state_dict)}
        content = save(state_dict, metadata=own)
    else:
        buffer = io.BytesIO()
        torch.save(dict(state_dict=state_dict, meta=plain_meta(meta)), buffer)
        content = buffer.getbuffer()
    with whole_checkpoint(path) as temporary:
        temporary.write_bytes(content)
