"""The JSON file beside the shards: what is in them, and where.

``dict(format, version, metainfo, source, samples, shards)``; of each shard ``name``, ``bytes`` and
``sha256`` of the file, ``starts``: where each of its samples begins, and then where the last one
ends, and ``crc32`` of the bytes of each sample.
"""

import json
from itertools import pairwise
from typing import Any, Optional

from mmengine import fileio

FORMAT, VERSION = 'mmlinattn-shards', 1
# Files of a sample, by what is behind the first dot of their names.
RECORD, LABEL, SEG_MAP = 'json', 'cls', 'seg.png'
IMAGES = ('jpg', 'jpeg', 'png', 'bmp', 'ppm', 'pgm', 'tif', 'tiff', 'webp')


def read_index(path: str, backend_args: Optional[dict] = None) -> dict:
    """The content of an index, checked as far as one can without the shards.

    Raises:
        ValueError: no index, one of another version, or one that contradicts itself.
        OSError: it cannot be read.
    """
    try:
        index = json.loads(fileio.get(path, backend_args))
    except ValueError as error:
        raise ValueError(f'{path} is no JSON: {error}') from error
    if not isinstance(index, dict) or index.get('format') != FORMAT:
        raise ValueError(
            f'{path} is no index of shards; tools/dataset_converters/to_shards.py writes one'
        )
    if index.get('version') != VERSION:
        raise ValueError(f'{path} has the version {index.get("version")!r}, known is {VERSION}')
    why = _why_contradictory(index)
    if why:
        raise ValueError(f'{path}: {why}')
    return index


def _why_contradictory(index: dict) -> Optional[str]:
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


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(v) is int and v >= 0 for v in values)


def to_json(values: dict) -> str:
    """A record or metainfo as JSON, the same for the same content; what is None is left out.

    Raises:
        TypeError: something in it is no number, text, list or dict.

    Example:
        >>> to_json(dict(classes=('cat', 'dog'), label_map={1: 0}, palette=None))
        '{"classes": ["cat", "dog"], "label_map": [[1, 0]]}'
    """
    kept = {key: value for key, value in values.items() if value is not None}
    if 'label_map' in kept:  # keys of JSON are text
        kept['label_map'] = [[*pair] for pair in kept['label_map'].items()]
    return json.dumps(kept, default=_plain, sort_keys=True)


def with_label_map(values: dict) -> dict:
    """What was given to :func:`to_json`, but for tuples, which are lists now."""
    if 'label_map' in values:
        values = {**values, 'label_map': dict(values['label_map'])}
    return values


def check_record(values: dict) -> None:
    """Raise ValueError for a record that names files: those of a sample are in its shard."""
    named = sorted(key for key in values if 'path' in key or key == 'sample_idx')
    if named:
        raise ValueError(f'a record in a shard must not have {", ".join(named)}')


def _plain(value: Any) -> Any:
    if hasattr(value, 'tolist'):  # numpy's
        return value.tolist()
    if isinstance(value, bytes):  # run lengths
        return value.decode('ascii')
    raise TypeError(f'{type(value).__name__} cannot be kept in a shard: {value!r}')
