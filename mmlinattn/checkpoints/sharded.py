"""Checkpoints whose tensors lie in several files, each written by the process that had the part.

``epoch_3.pth`` is then a file like any other, read as safely, in which the tensors that are
elsewhere have a shape and no values (meta device). Beside it is the folder that it names, written
by ``torch.distributed.checkpoint`` as safetensors files. DCP's own default, a pickle
(``.metadata``) that DCP reads without any check, is not used.

The folder of a new checkpoint has a new name and is on the disk before the file takes its own, so
that a kill leaves either the old checkpoint or the new one.
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
from .safe_unpickle import harmless_globals
from .write import PathLike, whole_checkpoint

# In the file: dict(folder=its name, files={name: (bytes, sha256)}). Also the end of that name.
SHARDS = 'shards'


def is_sharded(content: Mapping[str, Any]) -> bool:
    """Whether tensors of a checkpoint are in a folder beside it."""
    return SHARDS in content


def save_sharded(path: Path, content: Dict[str, Any]) -> None:
    """Write a checkpoint of which each process has a part. All processes call it together.

    Args:
        path: the file; older shards under its name go when the new ones are there.
        content: as MMEngine has it. Distributed tensors (``DTensor``) in ``state_dict`` and in the
            state of ``optimizer`` go to the shards, everything else is that of the first process.

    Raises:
        CheckpointError: in every process, if one of them cannot write. ``path`` is as before.
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
                with whole_checkpoint(path) as temporary:
                    torch.save(_without_values(content, folder.name, files), temporary)
                remove_shards(path, but=folder.name)
    except CheckpointError:
        if get_rank() == 0:
            shutil.rmtree(folder, ignore_errors=True)
        raise


@contextmanager
def _together(path: Path) -> Iterator[None]:
    """What fails in one process fails in all, so that none waits for another."""
    error = None
    try:
        yield
    except CheckpointError as found:
        error = str(found)
    # DCP's own exception, which has those of all processes, is no Exception.
    except (Exception, _dcp(path).CheckpointException) as found:
        error = f'{path} cannot be written: {_end_of(found)}; older files are as they were'
    errors = [found for found in all_gather_object(error) if found]
    if errors:
        raise CheckpointError(errors[0])


def tensors_of(content: Mapping[str, Any]) -> Iterator[Tuple[str, dict, Any, Tensor]]:
    """Tensors that can be in shards: (name there, dict that has it, key in it, tensor)."""
    weights = content.get('state_dict', {})
    places = [('state_dict', weights)]
    states = content.get('optimizer', {}).get('state', {})
    places += [(f'optimizer.{number}', state) for number, state in states.items()]
    for place, owner in places:
        for name, value in owner.items():
            if isinstance(value, Tensor):
                yield f'{place}.{name}', owner, name, value


def _without_values(content: Dict[str, Any], folder: str, files: dict) -> Dict[str, Any]:
    """A copy for the file: distributed tensors are empty ones of the meta device."""
    copy = {**content, 'state_dict': dict(content['state_dict'])}
    if 'optimizer' in content:
        states = content['optimizer']['state']
        states = {number: dict(state) for number, state in states.items()}
        copy['optimizer'] = {**content['optimizer'], 'state': states}
    for _, owner, name, tensor in tensors_of(copy):
        if _is_distributed(tensor):
            owner[name] = torch.empty(tensor.shape, dtype=tensor.dtype, device='meta')
        else:
            owner[name] = tensor.detach().cpu()
    return {**copy, SHARDS: dict(folder=folder, files=files)}


def check_shards(source: PathLike, content: Mapping[str, Any]) -> None:
    """Raise CheckpointError unless all shards are there with the content that was written."""
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
    """Read tensors of a checkpoint that :func:`check_shards` has passed.

    Args:
        source: its path.
        content: what the file has.
        into: by names of :func:`tensors_of`; filled in place. Of a distributed tensor the part of
            this process is read; all processes then call this together.

    Raises:
        CheckpointError: a tensor that the shards lack, or have in another shape.
    """
    if not into:
        return
    dcp = _dcp(source)
    reader = dcp.HuggingFaceStorageReader(str(_folder_and_files(source, content)[0]))
    alone = not any(map(_is_distributed, into.values()))
    try:
        with warnings.catch_warnings():
            # That it reads in a single process.
            warnings.filterwarnings('ignore', 'torch.distributed is disabled')
            dcp.load(into, storage_reader=reader, no_dist=alone)
    except (Exception, dcp.CheckpointException) as error:
        raise CheckpointError(f'{source}: its shards do not fit: {_end_of(error)}') from error


def filled(source: PathLike, content: Dict[str, Any]) -> Dict[str, Any]:
    """A copy of a checkpoint with the values of its shards; one without shards as it is."""
    if not is_sharded(content):
        return content
    copy = {**content, 'state_dict': dict(content['state_dict'])}
    if 'optimizer' in content:
        states = {k: dict(state) for k, state in content['optimizer']['state'].items()}
        copy['optimizer'] = {**content['optimizer'], 'state': states}
    into = {}
    for key, owner, name, tensor in tensors_of(copy):
        if tensor.is_meta:
            owner[name] = into[key] = torch.empty(tensor.shape, dtype=tensor.dtype)
    load_shards(source, content, into)
    del copy[SHARDS]
    return copy


def remove_shards(path: Path, but: str = '') -> None:
    """Remove the folders of shards of a file, which is gone or names the folder ``but``."""
    for folder in _folders(path.parent).get(path.name, []):
        if folder.name != but:
            shutil.rmtree(folder, ignore_errors=True)


def remove_lost_shards(folder: Path) -> None:
    """Remove shards that a kill while writing or removing left without a file that names them."""
    for name, shards in _folders(folder).items():
        path = folder / name
        if not path.is_file():
            remove_shards(path)
        elif len(shards) > 1:
            with harmless_globals(), suppress(Exception):  # of whatever kind: it is left as it is
                content = torch.load(path, map_location='cpu', mmap=True, weights_only=True)
                remove_shards(path, but=content[SHARDS]['folder'])


def _folders(folder: Path) -> Dict[str, List[Path]]:
    """Folders of shards by the name of their file."""
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
    """torch.distributed.checkpoint, if it has the safe format."""
    try:
        from torch.distributed import checkpoint as dcp

        dcp.HuggingFaceStorageReader  # noqa: B018
    except (ImportError, AttributeError) as error:
        raise CheckpointError(
            f'{source}: torch {torch.__version__} has no shards of safetensors files '
            '(torch.distributed.checkpoint.HuggingFaceStorageReader)'
        ) from error
    return dcp
