"""Conversion of a data set to shards."""

import hashlib
import io
import json
import os
import re
import shutil
import tarfile
import zlib
from pathlib import Path
from typing import Any, Callable, Iterator, List, Optional, Tuple, Union

import numpy as np
from mmengine import fileio

from ...utils import atomic_write, check_integer, write_json
from .index import FORMAT, IMAGES, LABEL, RECORD, SEG_MAP, VERSION, check_record, to_json

MIB = 2**20
END = 2 * tarfile.BLOCKSIZE  # zeros after the last member


def write_shards(
    dataset: Any,
    folder: Union[str, Path],
    name: str,
    shard_bytes: int = 256 * MIB,
    progress: Callable[[int, int], Any] = lambda done, total: None,
    seed: Optional[int] = None,
) -> Path:
    """Write ``folder/name-000000.tar``, ... and, when they are complete, ``folder/name.json``.

    A sample has several files with the same stem: the unchanged image, its segmentation map
    (``.seg.png``), its label (``.cls``), and the rest of its record (``.json``). The same data set
    gives the same bytes. After an interruption, a new call keeps complete shards and removes
    incomplete ones. Only one call at a time may write a set.

    Args:
        dataset: MMEngine data set whose records name files (``img_path``, ``seg_map_path``),
            already filtered. The files are read with their backends; its pipeline is not used.
        folder: folder of the shards, created if it is missing.
        name: name of the set, such as ``'train'``.
        shard_bytes: maximum size of a shard; a shard has at least one sample.
        progress: called with the number of written samples and their total number.
        seed: seed of a random order, for training: otherwise similar neighbours in the data set
            end up in the same batch. By default the order is that of the data set.

    Returns:
        path of the index.

    Raises:
        ValueError: the size is not positive, the data set is empty, or a record cannot be stored.
        FileExistsError: shards of that name exist, from another data set or of another size.
            Changed images of the same name are detected by their size, and only on the local disk.
        OSError: a file cannot be read or written.

    Example::

        write_shards(DATASETS.build(cfg.train_dataloader.dataset), 'data/shards', 'train')
    """
    shard_bytes = check_integer('shard_bytes', shard_bytes)
    if not name or '/' in name:
        raise ValueError(f'name must be one of a file, got {name!r}')
    if not len(dataset):
        raise ValueError(f'{type(dataset).__name__} has no sample')
    folder = Path(folder)
    _remove_partial_files(folder, name)
    order = np.arange(len(dataset))
    if seed is not None:
        order = np.random.default_rng(seed).permutation(order)
    source = dict(samples=len(dataset), shard_bytes=shard_bytes, seed=seed, sha256=_digest(dataset))
    target, state = folder / f'{name}.json', folder / f'.{name}.partial'
    if target.exists():
        if json.loads(target.read_bytes()).get('source') != source:
            raise FileExistsError(
                f'{target} exists, for another data set or shard size; use another folder'
            )
        shutil.rmtree(state, ignore_errors=True)
        return target
    shards = _completed_shards(state, folder, name, source)
    done = sum(len(shard['crc32']) for shard in shards)
    progress(done, len(dataset))
    while done < len(dataset):
        number = len(shards)
        path = folder / f'{name}-{number:06d}.tar'
        with atomic_write(path) as temporary:
            shard = _write_shard(temporary, dataset, order, done, shard_bytes, progress)
        shards.append(dict(name=path.name, **shard))
        write_json(state / f'{number:06d}.json', shards[-1], indent=None)
        done += len(shard['crc32'])
    index = dict(
        format=FORMAT,
        version=VERSION,
        metainfo=json.loads(to_json(dataset.metainfo)),
        source=source,
        samples=done,
        shards=shards,
    )
    write_json(target, index, indent=None)
    shutil.rmtree(state)
    return target


def _remove_partial_files(folder: Path, name: str) -> None:
    """Remove incomplete files of a killed call, which can be as large as a shard."""
    partial = re.compile(rf'\.{re.escape(name)}(-\d{{6,}}\.tar|\.json)\.\d+\.tmp')
    for path in folder.iterdir() if folder.is_dir() else ():
        if partial.fullmatch(path.name):
            path.unlink(missing_ok=True)


def _completed_shards(state: Path, folder: Path, name: str, source: dict) -> List[dict]:
    """Return the records of the shards that an earlier call has completed."""
    started = state / 'source.json'
    if started.exists():
        if json.loads(started.read_bytes()) != source:
            raise FileExistsError(f'{state} was started with another data set or shard size')
    else:
        others = sorted(folder.glob(f'{name}-[0-9]*.tar'))
        if others:
            raise FileExistsError(f'{others[0]} is there already, of another set')
        write_json(started, source, indent=None)
    shards: List[dict] = []
    while (path := state / f'{len(shards):06d}.json').exists():
        shards.append(json.loads(path.read_bytes()))
    return shards


def _digest(dataset: Any) -> str:
    """Return the sha256 of all records, which identifies the data set when a call is resumed.

    It includes the names of files and, on the local disk, their sizes: a resized copy of a data
    set may have the same records.
    """
    total = hashlib.sha256(to_json(dataset.metainfo).encode())
    backend_args = getattr(dataset, 'backend_args', None)
    for i in range(len(dataset)):
        info = dataset.get_data_info(i)
        for key in ('img_path', 'seg_map_path'):  # independent of the folder
            path = info.get(key) or ''
            info[key] = [os.path.basename(path), _size(path, backend_args)]
        total.update(to_json(info).encode())
    return total.hexdigest()


def _size(path: str, backend_args: Optional[dict]) -> Optional[int]:
    """Return the size of a local file, else None: a remote file would need a request."""
    backend = fileio.get_file_backend(path, backend_args=backend_args, enable_singleton=True)
    on_disk = isinstance(backend, fileio.LocalBackend)
    return os.path.getsize(path) if path and on_disk else None


def _write_shard(
    path: Path,
    dataset: Any,
    order: np.ndarray,
    first: int,
    shard_bytes: int,
    progress: Callable[[int, int], Any],
) -> dict:
    """Write samples from ``first`` on until the next one would exceed ``shard_bytes``."""
    starts, total = [0], hashlib.sha256()
    sums: List[int] = []
    with path.open('wb') as file:
        for i in range(first, len(dataset)):
            data = sample_bytes(dataset.get_data_info(int(order[i])), f'{i:09d}', dataset)
            if sums and starts[-1] + len(data) > shard_bytes - END:
                break
            file.write(data)
            total.update(data)
            starts.append(starts[-1] + len(data))
            sums.append(zlib.crc32(data))
            progress(i + 1, len(dataset))
        file.write(bytes(END))
        total.update(bytes(END))
    return dict(bytes=starts[-1] + END, sha256=total.hexdigest(), starts=starts, crc32=sums)


def sample_bytes(info: dict, key: str, dataset: Any) -> bytes:
    """Return a sample as stored in a shard: headers and contents of its files.

    Raises:
        ValueError: a record has no image file, or an entry that a shard cannot store.
    """
    out = io.BytesIO()
    for kind, content in _parts(info, getattr(dataset, 'backend_args', None)):
        header = tarfile.TarInfo(f'{key}.{kind}')  # without time and user
        header.size = len(content)
        out.write(header.tobuf(tarfile.USTAR_FORMAT))
        out.write(content)
        out.write(bytes(-len(content) % tarfile.BLOCKSIZE))
    return out.getvalue()


def _parts(info: dict, backend_args: Any) -> Iterator[Tuple[str, bytes]]:
    info = dict(info)
    info.pop('sample_idx', None)
    path = info.pop('img_path', None)
    if not isinstance(path, str):
        raise ValueError(f'only images in files can be kept in shards, this has none: {[*info]}')
    seg_map = info.pop('seg_map_path', None)
    label = info.pop('gt_label', None)
    check_record(info)
    suffix = os.path.splitext(path)[1].lower().lstrip('.')
    if suffix not in IMAGES:
        raise ValueError(f'{path}: images must be one of {IMAGES}')
    yield suffix, fileio.get(path, backend_args)
    if seg_map is not None:
        if not seg_map.lower().endswith('.png'):
            raise ValueError(f'{seg_map}: maps of classes must be PNG')
        yield SEG_MAP, fileio.get(seg_map, backend_args)
    if label is not None:
        if not hasattr(label, '__index__'):
            raise ValueError(f'{path}: gt_label must be one integer, got {label!r}')
        yield LABEL, str(int(label)).encode()
    yield RECORD, to_json(info).encode()
