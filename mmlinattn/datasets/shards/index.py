"""Index of the shards, a JSON file in their folder.

It is ``dict(format, version, metainfo, source, samples, shards)``. Each shard has:

- ``name``, ``bytes`` and ``sha256`` of the file;
- ``starts``: the offset of each sample, then the end of the last one;
- ``crc32`` of the bytes of each sample.
"""

import json
from itertools import pairwise
from typing import Any, List, Optional, TypeGuard

from mmengine import fileio

FORMAT, VERSION = 'mmlinattn-shards', 1
# Kinds of files in a sample, the part of their names after the first dot.
RECORD, LABEL, SEG_MAP = 'json', 'cls', 'seg.png'
IMAGES = ('jpg', 'jpeg', 'png', 'bmp', 'ppm', 'pgm', 'tif', 'tiff', 'webp')


def read_index(path: str, backend_args: Optional[dict] = None) -> dict:
    """Return the content of an index, checked as far as possible without the shards.

    Raises:
        ValueError: the file is not an index, has another version, or is inconsistent.
        OSError: the file cannot be read.
    """
    try:
        index = json.loads(fileio.get(path, backend_args))
    except ValueError as error:
        raise ValueError(f'{path} is not valid JSON: {error}') from error
    if not isinstance(index, dict) or index.get('format') != FORMAT:
        raise ValueError(f'{path} is not an index of shards; mmlinattn to-shards writes one')
    if index.get('version') != VERSION:
        raise ValueError(
            f'{path} has version {index.get("version")!r}; this package reads version {VERSION}'
        )
    problem = _inconsistency(index)
    if problem:
        raise ValueError(f'{path}: {problem}')
    return index


def _inconsistency(index: dict) -> Optional[str]:
    shards = index.get('shards')
    if not isinstance(index.get('metainfo'), dict) or not isinstance(shards, list):
        return 'metainfo must be a dict and shards a list'
    for i, shard in enumerate(shards):
        shard = shard if isinstance(shard, dict) else {}
        name, starts, sums = (shard.get(key) for key in ('name', 'starts', 'crc32'))
        if not isinstance(name, str) or not name or '/' in name:
            return f'shards[{i}].name is {name!r}'
        if not _are_sizes(starts) or not _are_sizes(sums) or len(starts) != len(sums) + 1:
            return f'shards[{i}]: starts and crc32 do not fit'
        if starts[0] != 0 or any(a >= b for a, b in pairwise(starts)):
            return f'shards[{i}].starts do not ascend from 0'
    if index.get('samples') != sum(len(shard['crc32']) for shard in shards):
        return f'samples is {index.get("samples")!r}, which is not the sum of its shards'
    return None


def _are_sizes(values: Any) -> TypeGuard[List[int]]:
    return isinstance(values, list) and all(type(v) is int and v >= 0 for v in values)


def to_json(values: dict) -> str:
    """Return a record or metainfo as deterministic JSON, without entries that are None.

    Raises:
        TypeError: a value is not a number, text, list or dict.

    Example:
        >>> to_json(dict(classes=('cat', 'dog'), label_map={1: 0}, palette=None))
        '{"classes": ["cat", "dog"], "label_map": [[1, 0]]}'
    """
    kept = {key: value for key, value in values.items() if value is not None}
    if 'label_map' in kept:  # JSON keys are always text
        kept['label_map'] = [[*pair] for pair in kept['label_map'].items()]
    return json.dumps(kept, default=_to_builtin, sort_keys=True)


def with_label_map(values: dict) -> dict:
    """Return the decoded output of :func:`to_json` with ``label_map`` as a dict again."""
    if 'label_map' in values:
        values = {**values, 'label_map': dict(values['label_map'])}
    return values


def check_record(values: dict) -> None:
    """Raise ValueError if a record names files, because the files of a sample are in its shard."""
    named = sorted(key for key in values if 'path' in key or key == 'sample_idx')
    if named:
        raise ValueError(f'a record in a shard must not have {", ".join(named)}')


def _to_builtin(value: Any) -> Any:
    if hasattr(value, 'tolist'):  # numpy
        return value.tolist()
    if isinstance(value, bytes):  # run lengths
        return value.decode('ascii')
    raise TypeError(f'{type(value).__name__} cannot be kept in a shard: {value!r}')
