"""Sharded checkpoints: each process writes its part of the tensors to its own file.

``epoch_3.pth`` is a normal checkpoint, read as safely, in which the sharded tensors have a shape
but no values (meta device). It names a folder beside it, which ``torch.distributed.checkpoint``
(DCP) writes as safetensors files. DCP's default format is not used: it contains a pickle
(``.metadata``) that DCP reads without any check.

The folder has a unique name and is flushed to disk before the file is replaced. A killed process
therefore leaves either the old checkpoint or the new one.
"""

import os
import shutil
import uuid
import warnings
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, Dict, Iterator, List, Mapping, Tuple
from urllib.parse import unquote, urlsplit

import torch
from mmengine.dist import all_gather_object, broadcast_object_list, get_rank
from torch import Tensor

from ..utils import to_disk
from .download import sha256_of
from .errors import CheckpointError
from .safe_unpickle import safe_globals
from .write import PathLike, atomic_checkpoint

# Key of dict(folder=name, files={name: (bytes, sha256)}) in the file, and suffix of the folder.
SHARDS = 'shards'


def is_sharded(content: Mapping[str, Any]) -> bool:
    """Return True if a checkpoint has tensors in a folder of shards."""
    return SHARDS in content


def save_sharded(path: Path, content: Dict[str, Any]) -> None:
    """Write a sharded checkpoint. All processes must call it together.

    Args:
        path: the file; its older shards are removed after the new ones are written.
        content: in MMEngine's layout. Distributed tensors (``DTensor``) in ``state_dict`` and in
            the state of ``optimizer`` are written as shards. The first process writes the rest.

    Raises:
        CheckpointError: in every process, if one of them cannot write. ``path`` is unchanged.
    """
    dcp = _dcp(path)
    token = [uuid.uuid4().hex[:8]]
    broadcast_object_list(token)
    folder = path.with_name(f'{path.name}.{token[0]}.{SHARDS}')
    parts = {key: tensor for key, *_, tensor in tensors_of(content) if _is_distributed(tensor)}
    written: Dict[str, Tuple[int, str]] = {}
    try:
        with _together(path):
            dcp.save(
                parts,
                storage_writer=dcp.HuggingFaceStorageWriter(str(folder), save_distributed=True),
                planner=dcp.DefaultSavePlanner(dedup_save_to_lowest_rank=True),
            )
            for file in folder.glob(f'shard-{get_rank() + 1:05d}-*'):
                written[file.name] = _size_and_hash(file)
        files = {name: entry for own in all_gather_object(written) for name, entry in own.items()}
        with _together(path):
            if get_rank() == 0:
                to_disk(folder)
                with atomic_checkpoint(path) as temporary:
                    torch.save(_without_values(content, folder.name, files), temporary)
                remove_shards(path, but=folder.name)
    except CheckpointError:
        if get_rank() == 0:
            shutil.rmtree(folder, ignore_errors=True)
        raise


@contextmanager
def _together(path: Path) -> Iterator[None]:
    """Raise CheckpointError in all processes if one fails, so that none waits for another."""
    error = None
    try:
        yield
    except CheckpointError as found:
        error = str(found)
    # DCP's exception, which collects those of all processes, is not a subclass of Exception.
    except (Exception, _dcp(path).CheckpointException) as found:
        error = f'{path} cannot be written: {_end_of(found)}; older files are as they were'
    errors = [found for found in all_gather_object(error) if found]
    if errors:
        raise CheckpointError(errors[0])


def tensors_of(content: Mapping[str, Any]) -> Iterator[Tuple[str, dict, Any, Tensor]]:
    """Yield the tensors that may be sharded: (name in the shards, containing dict, key, tensor)."""
    weights = content.get('state_dict', {})
    places = [('state_dict', weights)]
    states = content.get('optimizer', {}).get('state', {})
    places += [(f'optimizer.{number}', state) for number, state in states.items()]
    for place, owner in places:
        for name, value in owner.items():
            if isinstance(value, Tensor):
                yield f'{place}.{name}', owner, name, value


def _copied(content: Dict[str, Any]) -> Dict[str, Any]:
    """Return a copy of a checkpoint whose tensors can be replaced; it shares their values."""
    copy = {**content, 'state_dict': dict(content['state_dict'])}
    if 'optimizer' in content:
        states = {number: dict(state) for number, state in content['optimizer']['state'].items()}
        copy['optimizer'] = {**content['optimizer'], 'state': states}
    return copy


def _without_values(content: Dict[str, Any], folder: str, files: dict) -> Dict[str, Any]:
    """Return a copy of the content with distributed tensors replaced by empty meta tensors."""
    copy = _copied(content)
    for _, owner, name, tensor in tensors_of(copy):
        if _is_distributed(tensor):
            owner[name] = torch.empty(tensor.shape, dtype=tensor.dtype, device='meta')
        else:
            owner[name] = tensor.detach().cpu()
    return {**copy, SHARDS: dict(folder=folder, files=files)}


def check_shards(source: PathLike, content: Mapping[str, Any]) -> None:
    """Raise CheckpointError unless all shards exist and have the size and sha256 of the file."""
    folder, files = _folder_and_files(source, content)
    there = sorted(path.name for path in folder.glob('*')) if folder.is_dir() else []
    if there != sorted(files):
        missing = sorted(set(files).difference(there))
        raise CheckpointError(
            f'{source} is not whole: '
            + (f'{missing} of {folder} is missing' if missing else f'{folder} has other files')
        )
    for name, entry in files.items():
        if _size_and_hash(folder / name) != entry:
            raise CheckpointError(
                f'{source} is damaged: the content of {folder / name} has changed'
            )
    try:
        empty = sum(t.nbytes for *_, t in tensors_of(content) if t.is_meta)
    except (AttributeError, TypeError) as error:
        raise CheckpointError(f'{source} is damaged: no state of an optimizer') from error
    if empty > sum(size for size, _ in files.values()):
        raise CheckpointError(f'{source} is damaged: its tensors are larger than its shards')


def load_shards(source: PathLike, content: Mapping[str, Any], into: Dict[str, Tensor]) -> None:
    """Read tensors from shards that :func:`check_shards` has accepted.

    Args:
        source: path of the checkpoint.
        content: content of the checkpoint.
        into: tensors to fill in place, by their names in :func:`tensors_of`. Of a distributed
            tensor only the part of this process is read, and all processes must call this together.

    Raises:
        CheckpointError: the shards lack a tensor, or have it in another shape.
    """
    if not into:
        return
    dcp = _dcp(source)
    reader = dcp.HuggingFaceStorageReader(str(_folder_and_files(source, content)[0]))
    alone = not any(map(_is_distributed, into.values()))
    try:
        with warnings.catch_warnings():
            # DCP warns when it reads in a single process, which is intended here.
            warnings.filterwarnings('ignore', 'torch.distributed is disabled')
            dcp.load(into, storage_reader=reader, no_dist=alone)
    except (Exception, dcp.CheckpointException) as error:
        raise CheckpointError(f'{source}: its shards do not fit: {_end_of(error)}') from error


def filled(source: PathLike, content: Dict[str, Any]) -> Dict[str, Any]:
    """Return a copy of a checkpoint with the values of its shards.

    A checkpoint without shards is returned unchanged.
    """
    if not is_sharded(content):
        return content
    copy = _copied(content)
    into = {}
    for key, owner, name, tensor in tensors_of(copy):
        if tensor.is_meta:
            owner[name] = into[key] = torch.empty(tensor.shape, dtype=tensor.dtype)
    load_shards(source, content, into)
    del copy[SHARDS]
    return copy


def remove_shards(path: Path, but: str = '') -> None:
    """Remove the shard folders of a checkpoint except the folder named ``but``."""
    for folder in _folders(path.parent).get(path.name, []):
        if folder.name != but:
            shutil.rmtree(folder, ignore_errors=True)


def remove_lost_shards(folder: Path) -> None:
    """Remove shard folders that no checkpoint refers to.

    A process that is killed while it writes or removes a checkpoint leaves such folders.
    """
    for name, shards in _folders(folder).items():
        path = folder / name
        if not path.is_file():
            remove_shards(path)
        elif len(shards) > 1:
            with safe_globals(), suppress(Exception):  # an unreadable file keeps its shards
                content = torch.load(path, map_location='cpu', mmap=True, weights_only=True)
                remove_shards(path, but=content[SHARDS]['folder'])


def _folders(folder: Path) -> Dict[str, List[Path]]:
    """Return the shard folders in a folder, by the name of their checkpoint."""
    found: Dict[str, List[Path]] = {}
    for path in folder.iterdir():
        if path.suffix == f'.{SHARDS}' and path.is_dir():
            found.setdefault(path.name.rsplit('.', 2)[0], []).append(path)
    return found


def _folder_and_files(source: PathLike, content: Mapping[str, Any]) -> Tuple[Path, Dict]:
    text = str(source)
    scheme = text.partition('://')[0] if '://' in text else 'file'
    if scheme != 'file':
        raise CheckpointError(f'{source} has shards beside it: copy both to a folder of this disk')
    path = Path(unquote(urlsplit(text).path) if '://' in text else text).expanduser()
    try:
        folder = str(content[SHARDS]['folder'])
        files = {str(k): (int(v[0]), str(v[1])) for k, v in content[SHARDS]['files'].items()}
    except (TypeError, KeyError, ValueError, IndexError, AttributeError) as error:
        raise CheckpointError(
            f'{source} is damaged: it does not say what its shards are'
        ) from error
    if any(os.path.basename(name) != name or name in ('', '.', '..') for name in (folder, *files)):
        raise CheckpointError(f'{source} is refused: its shards are not beside it, but {folder}')
    return path.with_name(folder), files


def _size_and_hash(path: Path) -> Tuple[int, str]:
    return path.stat().st_size, sha256_of(path)


def _is_distributed(tensor: Tensor) -> bool:
    return hasattr(tensor, 'device_mesh')


def _end_of(error: BaseException) -> str:
    return ' '.join(str(error).split())[-300:]


def _dcp(source: PathLike) -> ModuleType:
    """Return torch.distributed.checkpoint, or raise CheckpointError if it lacks safetensors."""
    try:
        from torch.distributed import checkpoint as dcp

        dcp.HuggingFaceStorageReader  # noqa: B018
    except (ImportError, AttributeError) as error:
        raise CheckpointError(
            f'{source}: torch {torch.__version__} has no shards of safetensors files '
            '(torch.distributed.checkpoint.HuggingFaceStorageReader)'
        ) from error
    return dcp
