"""File backend for files inside tar files, with URIs that every loading transform can read."""

import re
from typing import Dict, Optional, Tuple
from urllib.parse import quote, unquote

from mmengine.fileio import (
    BaseStorageBackend,
    LocalBackend,
    get_file_backend,
    register_backend,
)
from mmengine.fileio import io as mmengine_io

from ...utils import open_regular

PREFIX = 'shard://'
PLACE = re.compile(r'shard://(.+)#(\d+)\+(\d+)/[^/]*')


class DamagedSample(OSError):
    """Error for a damaged sample of a shard; the message names shard, offset and reason."""


class Member(str):
    """URI of a file in a shard, with the content of the file.

    A pickled or copied URI is a plain string without the content, which can be read again.

    Args:
        shard: path of the tar file.
        start, name: offset of the content in the tar file, and name of the file.
        content: content of the file.

    Example:
        >>> Member('s3://data/train-000000.tar', 512, '000000000.jpg', b'...')
        'shard://s3%3A//data/train-000000.tar#512+3/000000000.jpg'
    """

    content: bytes

    def __new__(cls, shard: str, start: int, name: str, content: bytes) -> 'Member':
        self = super().__new__(cls, f'{PREFIX}{quote(shard)}#{start}+{len(content)}/{name}')
        self.content = content
        return self

    def __reduce__(self) -> tuple:
        return str, (str(self),)


class DamagedMember(str):
    """URI of the image of a damaged sample; loading it raises the error.

    Args:
        shard: path of the tar file.
        start, size: offset and size of the sample.
        why: the error.
    """

    why: DamagedSample

    def __new__(cls, shard: str, start: int, size: int, why: DamagedSample) -> 'DamagedMember':
        self = super().__new__(cls, f'{PREFIX}{quote(shard)}#{start}+{size}/')
        self.why = why
        return self

    def __reduce__(self) -> tuple:
        shard, start, size = _place(self)
        return type(self), (shard, start, size, self.why)


@register_backend('shard', prefixes='shard')
class MemberStore(BaseStorageBackend):
    """File backend for :class:`Member`; a URI without content is read from its shard."""

    # Path of a shard -> backend_args of its data set.
    of_shard: Dict[str, Optional[dict]] = {}

    @classmethod
    def know(cls, shard: str, backend_args: Optional[dict]) -> None:
        """Register the backend_args of a shard in this process and its forks."""
        cls.of_shard[shard] = backend_args

    def get(self, filepath: str) -> bytes:
        if isinstance(filepath, Member):
            return filepath.content
        if isinstance(filepath, DamagedMember):
            raise filepath.why
        shard, start, size = _place(filepath)
        return read_range(shard, start, size, self.of_shard.get(shard))

    def get_text(self, filepath: str, encoding: str = 'utf-8') -> str:
        return self.get(filepath).decode(encoding)

    def exists(self, filepath: str) -> bool:
        shard = _place(filepath)[0]
        backend_args = self.of_shard.get(shard)
        return get_file_backend(shard, backend_args=backend_args, enable_singleton=True).exists(
            shard
        )


_of_mmengine = mmengine_io._get_file_backend


def _backend(prefix: str, backend_args: dict) -> BaseStorageBackend:
    """Return MemberStore for URIs of files in shards, else the backend that MMEngine chooses.

    Transforms that load an image get the ``backend_args`` of the data set, which are those of the
    shards. In MMEngine these arguments override the prefix of the URI, so the image would be
    looked up in the wrong backend.
    """
    return MemberStore() if prefix == 'shard' else _of_mmengine(prefix, backend_args)


mmengine_io._get_file_backend = _backend


def _place(address: str) -> Tuple[str, int, int]:
    found = PLACE.fullmatch(address)
    if not found:
        raise ValueError(f'{address!r} is no address of a file in a shard')
    return unquote(found[1]), int(found[2]), int(found[3])


def read_range(path: str, start: int, size: int, backend_args: Optional[dict] = None) -> bytes:
    """Return ``size`` bytes of a file from ``start`` on, with any file backend.

    Raises:
        OSError: the file ends before, cannot be read, or its backend cannot read parts of files.
    """
    backend = get_file_backend(path, backend_args=backend_args, enable_singleton=True)
    if isinstance(backend, LocalBackend):
        with open_regular(path, limited=False) as file:
            file.seek(start)
            data = file.read(size)
        if len(data) != size:
            raise OSError(f'{path} ends before byte {start + size}')
        return data
    if not hasattr(backend, 'get_range'):
        raise OSError(f'{path}: {type(backend).__name__} does not give parts of files')
    return backend.get_range(path, start, size)
