"""Base class of the remote file backends: retries, partial reads, temporary local copies."""

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

from ...utils import check_integer, redacted
from ...utils.messages import log_warning
from .tar_member import TarMemberBackend, is_tar_member

T = TypeVar('T')
FIRST_WAIT_S, MAX_WAIT_S = 0.5, 30.0
# A separate generator: a retry must not change the random numbers of a seeded training.
_jitter = random.SystemRandom().uniform


class StoreError(OSError):
    """Error for a failed request to a store, which does not mean that the file is damaged."""


class StoreUnreachable(StoreError):
    """Error after all attempts failed."""


class StoreRefused(StoreError, PermissionError):
    """Error for a file that cannot be read with these credentials or without any."""


class TransientError(Exception):
    """Transient error: no connection, an incomplete response or an error of the server."""


class RemoteFileBackend(BaseStorageBackend):
    """Base class of MMEngine file backends for remote files.

    It stores only its arguments, so it can be pickled for data-loader workers.

    Args:
        attempts: maximum attempts of a request, at least 1. The wait between two attempts starts
            at half a second and doubles each time, up to 30 s, with a little randomness.
        timeout: seconds without a response until an attempt fails.

    Raises:
        ValueError: arguments out of range.
        FileNotFoundError: on reading, the file does not exist.
        StoreRefused: on reading, access is denied.
        StoreUnreachable: all attempts failed.
        StoreError: any other response that is not the file, or one that is too long
            (``MMLINATTN_MAX_DOWNLOAD_GIB``).
        OSError: the file ends before the requested part.
    """

    def __init__(self, attempts: int = 6, timeout: float = 30.0) -> None:
        if not (math.isfinite(timeout) and timeout > 0):
            raise ValueError(f'timeout must be a positive number of seconds, got {timeout!r}')
        self.attempts = check_integer('attempts', attempts)
        self.timeout = timeout

    def get(self, filepath: Union[str, Path]) -> bytes:
        """Return the content of a file."""
        if is_tar_member(filepath):  # of a shard, read with the backend_args of its data set
            return TarMemberBackend().get(filepath)
        return self.retry(str(filepath), lambda: self.fetch(str(filepath)))

    def get_range(self, filepath: str, start: int, size: int) -> bytes:
        """Return ``size`` bytes from ``start`` on; raise OSError if the file ends before."""
        data = self.retry(filepath, lambda: self.fetch(filepath, (start, size)))
        if len(data) != size:
            raise OSError(f'{redacted(filepath)} ends before byte {start + size}')
        return data

    def get_text(self, filepath: Union[str, Path], encoding: str = 'utf-8') -> str:
        return self.get(filepath).decode(encoding)

    @contextmanager
    def get_local_path(self, filepath: Union[str, Path]) -> Iterator[str]:
        """Yield the path of a local copy that is removed at the end of the block."""
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
        """Read a file or its part (start, size) in one attempt.

        Raise :class:`TransientError` for transient errors.
        """

    @abstractmethod
    def isfile(self, filepath: str) -> bool:
        """Return True if the file exists."""

    @abstractmethod
    def isdir(self, filepath: str) -> bool:
        """Return True if there are files below the path."""

    @abstractmethod
    def list_dir_or_file(
        self,
        dir_path: str,
        list_dir: bool = True,
        list_file: bool = True,
        suffix: Any = None,
        recursive: bool = False,
    ) -> Iterator[str]:
        """Yield the paths below a folder, relative to it."""

    def retry(self, url: str, request: Callable[[], T]) -> T:
        """Return the result of ``request``; repeat it while it raises :class:`TransientError`."""
        for attempt in range(1, self.attempts + 1):
            try:
                return request()
            except TransientError as error:
                what = f'{redacted(url)}: {error} ({attempt} of {self.attempts} attempts)'
                if attempt == self.attempts:
                    raise StoreUnreachable(what) from None
                wait = min(FIRST_WAIT_S * 2 ** (attempt - 1), MAX_WAIT_S) * _jitter(0.75, 1.25)
            log_warning(f'{what}; again in {wait:.1f} s')
            time.sleep(wait)
        raise AssertionError('unreachable')


# Transient HTTP errors besides those of the server, 500 and above.
TRANSIENT_STATUS = (408, 425, 429)


def error_of_status(url: str, status: int, code: str = '') -> Exception:
    """Return the exception for an error response of a server.

    Args:
        url: URL of the file.
        status: HTTP status.
        code: error code of the store, such as ``'ExpiredToken'``.
    """
    response = f'HTTP {status}, {code}' if code else f'HTTP {status}'
    if status >= 500 or status in TRANSIENT_STATUS:
        return TransientError(response)
    if status in (404, 410):
        return FileNotFoundError(f'{redacted(url)} does not exist ({response})')
    if status in (401, 403):
        return StoreRefused(
            f'access to {redacted(url)} is denied ({response}); check the credentials in the '
            'environment'
        )
    if status == 416:
        return OSError(f'{redacted(url)} ends before the requested part ({response})')
    return StoreError(f'{redacted(url)} cannot be read ({response})')
