"""Files inside of tar files, by an address that every loading transform can read."""

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

from ...files import open_regular

PREFIX = 'shard://'
PLACE = re.compile(r'shard://(.+)#(\d+)\+(\d+)/[^/]*')


class DamagedSample(OSError):
    """A sample of a shard that cannot be used; the message names the shard, the place and why."""


class Member(str):
    """An address of a file in a shard, which has the content with it.

    Sent to another process, or copied, it is the address alone: the content can be read again.

    Args:
        shard: path of the tar file.
        start, name: where the file's content begins, and its name.
        content: of the file.

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
    """In place of the image of a sample that is damaged: who loads it gets the error.

    Args:
        shard: path of the tar file.
        start, size: the place of the sample.
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
    """Reads what :class:`Member` names; of an address alone, from its shard."""

    # backend_args of the data set that has a shard, by the shard's path.
    of_shard: Dict[str, Optional[dict]] = {}

    @classmethod
    def know(cls, shard: str, backend_args: Optional[dict]) -> None:
        """How the shard of an address is read in this process, and in those that it forks."""
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
    """MMEngine's choice of a backend, but for addresses in shards.

    Whoever loads an image of a data set is given that data set's arguments. They say how its shards
    are read, not its images, which MMEngine would look for in the wrong place: arguments come
    before the prefix of an address there.
    """
    return MemberStore() if prefix == 'shard' else _of_mmengine(prefix, backend_args)


mmengine_io._get_file_backend = _backend


def _place(address: str) -> Tuple[str, int, int]:
    found = PLACE.fullmatch(address)
    if not found:
        raise ValueError(f'{address!r} is no address of a file in a shard')
    return unquote(found[1]), int(found[2]), int(found[3])


def read_range(path: str, start: int, size: int, backend_args: Optional[dict] = None) -> bytes:
    """``size`` bytes of a file of any store from ``start`` on.

    Raises:
        OSError: the file ends before, cannot be read, or its store does not give parts of files.
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
