"""File backend for files inside tar files, with URIs that every loading transform can read."""

import re
from pathlib import Path
from typing import Any, Dict, Optional, Tuple, TypeGuard, Union
from urllib.parse import quote, unquote

from mmengine.fileio import BaseStorageBackend, LocalBackend, get_file_backend

from ...utils import open_regular

PREFIX = 'shard://'
URI = re.compile(r'shard://(.+)#(\d+)\+(\d+)/[^/]*')


class DamagedSample(OSError):
    """Error for a damaged sample of a shard; the message names shard, offset and reason."""


class TarMember(str):
    """URI of a file in a shard, with the content of the file.

    A pickled or copied URI is a plain string without the content, which can be read again.

    Args:
        shard: path of the tar file.
        start, name: offset of the content in the tar file, and name of the file.
        content: content of the file.

    Example:
        >>> TarMember('s3://data/train-000000.tar', 512, '000000000.jpg', b'...')
        'shard://s3%3A//data/train-000000.tar#512+3/000000000.jpg'
    """

    content: bytes

    def __new__(cls, shard: str, start: int, name: str, content: bytes) -> 'TarMember':
        self = super().__new__(cls, f'{PREFIX}{quote(shard)}#{start}+{len(content)}/{name}')
        self.content = content
        return self

    def __reduce__(self) -> tuple:
        return str, (str(self),)


class DamagedTarMember(str):
    """URI of the image of a damaged sample; loading it raises the error.

    Args:
        shard: path of the tar file.
        start, size: offset and size of the sample.
        why: the error.
    """

    why: DamagedSample

    def __new__(cls, shard: str, start: int, size: int, why: DamagedSample) -> 'DamagedTarMember':
        self = super().__new__(cls, f'{PREFIX}{quote(shard)}#{start}+{size}/')
        self.why = why
        return self

    def __reduce__(self) -> tuple:
        shard, start, size = _parse_uri(self)
        return type(self), (shard, start, size, self.why)


class TarMemberBackend(BaseStorageBackend):
    """File backend for :class:`TarMember`; a URI without content is read from its shard.

    Args:
        kwargs: ``backend_args`` of the transform that reads, not used: those of the shard's data
            set are.
    """

    # Path of a shard -> backend_args of its data set.
    shard_backend_args: Dict[str, Optional[dict]] = {}

    def __init__(self, **kwargs: Any) -> None:
        pass

    @classmethod
    def register(cls, shard: str, backend_args: Optional[dict]) -> None:
        """Register the backend_args of a shard in this process and its forks."""
        cls.shard_backend_args[shard] = backend_args

    def get(self, filepath: str) -> bytes:
        if isinstance(filepath, TarMember):
            return filepath.content
        if isinstance(filepath, DamagedTarMember):
            raise filepath.why
        shard, start, size = _parse_uri(filepath)
        return read_range(shard, start, size, self.shard_backend_args.get(shard))

    def get_text(self, filepath: str, encoding: str = 'utf-8') -> str:
        return self.get(filepath).decode(encoding)

    def exists(self, filepath: str) -> bool:
        shard = _parse_uri(filepath)[0]
        backend_args = self.shard_backend_args.get(shard)
        return get_file_backend(shard, backend_args=backend_args, enable_singleton=True).exists(
            shard
        )


def is_tar_member(path: Union[str, Path]) -> TypeGuard[str]:
    """Return True if a path is the URI of a file in a shard.

    Transforms may have the ``backend_args`` of the data set. MMEngine then asks the backend of the
    shards for the URI.
    """
    return isinstance(path, str) and path.startswith(PREFIX)


def _parse_uri(address: str) -> Tuple[str, int, int]:
    match = URI.fullmatch(address)
    if not match:
        raise ValueError(f'{address!r} is not the URI of a file in a shard')
    return unquote(match[1]), int(match[2]), int(match[3])


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
        raise OSError(f'{path}: {type(backend).__name__} cannot read byte ranges')
    return backend.get_range(path, start, size)
