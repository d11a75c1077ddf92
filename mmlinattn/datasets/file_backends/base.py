"""What the stores share: faults that pass are tried again, parts of files, copies on the disk."""

import logging
import math
import random
import tempfile
import time
from abc import abstractmethod
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Iterator, Optional, TypeVar, Union
from urllib.parse import urlsplit

from mmengine.fileio import BaseStorageBackend
from mmengine.logging import print_log

from ...utils import redacted

T = TypeVar('T')
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 30.0
# Not of the generators that training seeds: a fault must not change its numbers.
_jitter = random.SystemRandom().uniform


class StoreError(OSError):
    """A store that does not give what it is asked for; nothing is known of the file itself."""


class StoreUnreachable(StoreError):
    """However often it was tried."""


class StoreRefused(StoreError, PermissionError):
    """The file must not be read, without credentials or with these."""


class Passing(Exception):
    """A fault that may be gone the next time: no connection, a cut answer, a server's own error."""


class Store(BaseStorageBackend):
    """A backend of MMEngine whose files are elsewhere.

    It holds nothing but its arguments, so that it can be sent to data-loader workers.

    Args:
        attempts: how often a request is tried, at least 1. Between two of them it waits half a
            second, then twice as long each time, up to 30 s, with a little randomness.
        timeout: seconds without an answer until an attempt has failed.

    Raises:
        ValueError: arguments out of range.
        FileNotFoundError: of what is read, there is no such file.
        StoreRefused: of what is read, it must not be.
        StoreUnreachable: all attempts failed.
        StoreError: any other answer that is not the file, or one that is too long
            (``MMLINATTN_MAX_DOWNLOAD_GIB``).
        OSError: the file ends before what is asked for.
    """

    def __init__(self, attempts: int = 6, timeout: float = 30.0) -> None:
        if type(attempts) is not int or attempts < 1:
            raise ValueError(f'attempts must be a positive integer, got {attempts!r}')
        if not (math.isfinite(timeout) and timeout > 0):
            raise ValueError(f'timeout must be a positive number of seconds, got {timeout!r}')
        self.attempts = attempts
        self.timeout = timeout

    def get(self, filepath: Union[str, Path]) -> bytes:
        """The whole file."""
        return self.retried(str(filepath), lambda: self.fetch(str(filepath)))

    def get_range(self, filepath: str, start: int, size: int) -> bytes:
        """``size`` bytes from ``start`` on; OSError where the file ends before."""
        data = self.retried(filepath, lambda: self.fetch(filepath, (start, size)))
        if len(data) != size:
            raise OSError(f'{redacted(filepath)} ends before byte {start + size}')
        return data

    def get_text(self, filepath: Union[str, Path], encoding: str = 'utf-8') -> str:
        return self.get(filepath).decode(encoding)

    @contextmanager
    def get_local_path(self, filepath: Union[str, Path]) -> Iterator[str]:
        """A copy on the disk, for as long as the block lasts."""
        data = self.get(filepath)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / (Path(urlsplit(str(filepath)).path).name or 'file')
            path.write_bytes(data)
            yield str(path)

    def join_path(self, filepath: str, *filepaths: str) -> str:
        return '/'.join([filepath.rstrip('/'), *(part.strip('/') for part in filepaths)])

    def exists(self, filepath: str) -> bool:
        return self.isfile(filepath) or self.isdir(filepath)

    @abstractmethod
    def fetch(self, url: str, part: Optional[tuple] = None) -> bytes:
        """One attempt at a file or (start, size) of it; :class:`Passing` for what may pass."""

    @abstractmethod
    def isfile(self, filepath: str) -> bool:
        """Is there such a file?"""

    @abstractmethod
    def isdir(self, filepath: str) -> bool:
        """Is there something below that path?"""

    @abstractmethod
    def list_dir_or_file(
        self,
        dir_path: str,
        list_dir: bool = True,
        list_file: bool = True,
        suffix: Any = None,
        recursive: bool = False,
    ) -> Iterator[str]:
        """Paths below a folder, as seen from there."""

    def retried(self, url: str, ask: Callable[[], T]) -> T:
        """What ``ask`` returns, as soon as it does not raise :class:`Passing`."""
        for attempt in range(1, self.attempts + 1):
            try:
                return ask()
            except Passing as fault:
                what = f'{redacted(url)}: {fault} ({attempt} of {self.attempts} attempts)'
                if attempt == self.attempts:
                    raise StoreUnreachable(what) from None
                wait = min(FIRST_WAIT_S * 2 ** (attempt - 1), LONGEST_WAIT_S) * _jitter(0.75, 1.25)
            print_log(f'{what}; again in {wait:.1f} s', 'current', level=logging.WARNING)
            time.sleep(wait)
        raise AssertionError('unreachable')


# Answers that may be others the next time, besides the server's own faults: 500 and above.
BUSY = (408, 425, 429)


def refused(url: str, status: int, code: str = '') -> Exception:
    """What to raise for the answer of a server that is not the file.

    Args:
        url: of the file.
        status: of HTTP.
        code: the store's own word for it, such as ``'ExpiredToken'``.
    """
    answer = f'HTTP {status}, {code}' if code else f'HTTP {status}'
    if status >= 500 or status in BUSY:
        return Passing(answer)
    if status in (404, 410):
        return FileNotFoundError(f'{redacted(url)} does not exist ({answer})')
    if status in (401, 403):
        return StoreRefused(
            f'{redacted(url)} must not be read, without credentials or with these ({answer})'
        )
    if status == 416:
        return OSError(f'{redacted(url)} ends before the part that is asked for ({answer})')
    return StoreError(f'{redacted(url)} cannot be read ({answer})')
