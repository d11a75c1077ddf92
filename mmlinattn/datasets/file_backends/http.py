"""File backend for web servers."""

from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse
from ssl import SSLCertVerificationError
from typing import Any, Iterator, Optional
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request

from ...utils import FetchRefused, check_size, open_request, redacted, size_limit
from .base import RemoteFileBackend, StoreError, TransientError, error_of_status

# Characters that quoting a URL keeps: separators, and % because parts may be quoted already.
URL_CHARACTERS = "/:?&=%@+,;~!$'()*[]"


class HTTPFileBackend(RemoteFileBackend):
    """File backend for web servers, which replaces MMEngine's backend of the same name.

    Web servers cannot list folders. Proxies are read from the environment (``https_proxy``). A
    redirect from https to http raises StoreError.

    Args:
        attempts, timeout: see :class:`.base.RemoteFileBackend`, also for the errors.

    Example::

        fileio.get('https://example.org/images/000000000001.jpg')
    """

    def fetch(self, url: str, part: Optional[tuple] = None) -> bytes:
        headers = {}
        if part is not None:
            headers['Range'] = f'bytes={part[0]}-{part[0] + part[1] - 1}'
        with _open_response(url, self.timeout, headers) as response:
            if part is not None and response.status != 206:
                raise StoreError(f'{redacted(url)}: the server does not support range requests')
            size = part[1] if part else None
            if not response.chunked:
                # Without a length an incomplete response cannot be detected; with one, only read()
                # without a size detects it.
                if response.length is None:
                    raise StoreError(f'{redacted(url)}: the response has no Content-Length')
                _check_length(url, response.length, size)
                return response.read()
            # A chunked response has no length, so its read needs a size limit.
            data = response.read((size or size_limit()) + 1)
            _check_length(url, len(data), size)
            return data

    def isfile(self, filepath: str) -> bool:
        def request() -> bool:
            try:
                with _open_response(filepath, self.timeout, method='HEAD'):
                    return True
            except FileNotFoundError:
                return False

        return self.retry(filepath, request)

    def isdir(self, filepath: str) -> bool:
        return False

    def list_dir_or_file(self, dir_path: str, *args: Any, **kwargs: Any) -> Iterator[str]:
        raise OSError(
            f'{redacted(dir_path)}: a web server cannot list files; see docs/datasets.md '
            'for what can be read from there'
        )


def _check_length(url: str, length: int, size: Optional[int]) -> None:
    if size is not None and length > size:
        raise StoreError(
            f'{redacted(url)}: the server sent {length} bytes, but {size} were requested'
        )
    check_size(url, length)


@contextmanager
def _open_response(
    url: str, timeout: float, headers: Optional[dict] = None, method: str = 'GET'
) -> Iterator[HTTPResponse]:
    """Yield an open response; convert errors, also while it is read, to those of the backend."""
    headers = {'User-Agent': 'mmlinattn', **(headers or {})}
    try:
        request = Request(quote(url, safe=URL_CHARACTERS), headers=headers, method=method)
        with open_request(request, timeout) as response:
            yield response
    except FetchRefused as error:
        raise StoreError(str(error)) from None
    except HTTPError as error:
        error.close()
        raise error_of_status(url, error.code) from None
    except (URLError, ConnectionError, TimeoutError, HTTPException) as error:
        reason = getattr(error, 'reason', error)
        if isinstance(reason, SSLCertVerificationError):
            raise StoreError(f'{redacted(url)}: {reason.verify_message}') from None
        raise TransientError(f'{type(reason).__name__}: {reason}') from None
