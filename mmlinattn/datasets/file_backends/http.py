"""File backend for web servers."""

from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse
from ssl import SSLCertVerificationError
from typing import Any, Iterator, Optional
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request

from mmengine.fileio import register_backend

from ...utils import FetchRefused, check_size, opened, redacted, size_limit
from .base import Passing, Store, StoreError, refused

# Characters that quoting a URL keeps: separators, and % because parts may be quoted already.
SAFE = "/:?&=%@+,;~!$'()*[]"


@register_backend('http', force=True, prefixes=['http', 'https'])
class HTTPStore(Store):
    """File backend for web servers, which replaces MMEngine's backend of the same name.

    Web servers cannot list folders. Proxies are read from the environment (``https_proxy``). A
    redirect from https to http raises StoreError.

    Args:
        attempts, timeout: see :class:`.base.Store`, also for the errors.

    Example::

        fileio.get('https://example.org/images/000000000001.jpg')
    """

    def fetch(self, url: str, part: Optional[tuple] = None) -> bytes:
        headers = {}
        if part is not None:
            headers['Range'] = f'bytes={part[0]}-{part[0] + part[1] - 1}'
        with _answer(url, self.timeout, headers) as answer:
            if part is not None and answer.status != 206:
                raise StoreError(f'{redacted(url)}: the server does not give parts of files')
            # Without a length an incomplete response cannot be detected.
            if answer.length is None and not answer.chunked:
                raise StoreError(f'{redacted(url)}: the server does not say how long the file is')
            # With a length only read() without a size detects an incomplete response. A chunked
            # response has no length, so its read needs a size limit.
            asked = part[1] if part else None
            if not answer.chunked:
                _check_length(url, answer.length, asked)
                return answer.read()
            data = answer.read((asked or size_limit()) + 1)
            _check_length(url, len(data), asked)
            return data

    def isfile(self, filepath: str) -> bool:
        def ask() -> bool:
            try:
                with _answer(filepath, self.timeout, method='HEAD'):
                    return True
            except FileNotFoundError:
                return False

        return self.retried(filepath, ask)

    def isdir(self, filepath: str) -> bool:
        return False

    def list_dir_or_file(self, dir_path: str, *args: Any, **kwargs: Any) -> Iterator[str]:
        raise OSError(
            f'{redacted(dir_path)}: a web server has no list of its files; see docs/datasets.md '
            'for what can be read from there'
        )


def _check_length(url: str, length: int, asked: Optional[int]) -> None:
    if asked is not None and length > asked:
        raise StoreError(f'{redacted(url)}: {length} bytes came where {asked} were asked for')
    check_size(url, length)


@contextmanager
def _answer(
    url: str, timeout: float, headers: Optional[dict] = None, method: str = 'GET'
) -> Iterator[HTTPResponse]:
    """Yield an open response; convert errors, also while it is read, to those of :class:`Store`."""
    known = {'User-Agent': 'mmlinattn', **(headers or {})}
    try:
        request = Request(quote(url, safe=SAFE), headers=known, method=method)
        with opened(request, timeout) as answer:
            yield answer
    except FetchRefused as error:
        raise StoreError(str(error)) from None
    except HTTPError as error:
        error.close()
        raise refused(url, error.code) from None
    except (URLError, ConnectionError, TimeoutError, HTTPException) as error:
        reason = getattr(error, 'reason', error)
        if isinstance(reason, SSLCertVerificationError):
            raise StoreError(f'{redacted(url)}: {reason.verify_message}') from None
        raise Passing(f'{type(reason).__name__}: {reason}') from None
