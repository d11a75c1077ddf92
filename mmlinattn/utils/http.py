"""HTTP requests with limits on URL scheme, size and transfer rate."""

import io
import os
import time
from contextlib import contextmanager
from functools import lru_cache
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from socket import socket
from typing import Any, Iterator
from urllib.parse import urlsplit
from urllib.request import (
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    Request,
    build_opener,
)

from .redact import RedactedError

GIB = 2**30
# Minimum rate in bytes per second, averaged over ``timeout`` seconds of waiting.
MIN_BYTES_PER_S = 1024


class FetchRefused(RedactedError, OSError):
    """Error for a file that must not be fetched; the message has its URL without secrets."""


def check_size(address: str, size: int) -> None:
    """Raise FetchRefused if the size exceeds :func:`size_limit`."""
    limit = size_limit()
    if size > limit:
        raise FetchRefused(
            f'{address} is larger than {limit / GIB:g} GiB; '
            'MMLINATTN_MAX_DOWNLOAD_GIB sets the limit'
        )


def size_limit() -> int:
    """Return the maximum bytes of a file, from ``MMLINATTN_MAX_DOWNLOAD_GIB`` (default 4)."""
    return int(float(os.environ.get('MMLINATTN_MAX_DOWNLOAD_GIB', 4)) * GIB)


@contextmanager
def open_request(request: Request, timeout: float) -> Iterator[HTTPResponse]:
    """Open an HTTP request and yield the response; follow redirects unless they leave https.

    Args:
        request: request with an ``https`` or ``http`` URL.
        timeout: seconds to wait for the first byte. After each further ``timeout`` seconds of
            waiting, headers included, the average rate must be at least ``MIN_BYTES_PER_S``.

    Raises:
        TimeoutError: the response is too slow, also while it is read.
        FetchRefused: another scheme, also after a redirect, or a redirect from https to http.
        OSError, HTTPException: see ``urllib.request.urlopen``.
    """
    _check_scheme(request.full_url)
    with _opener().open(request, timeout=timeout) as response:
        yield response


def _check_scheme(address: str) -> None:
    scheme = urlsplit(address).scheme
    if scheme not in ('http', 'https'):
        raise FetchRefused(f'{address}: {scheme!r} is not https')


class _RedirectHandler(HTTPRedirectHandler):
    def redirect_request(self, request, file, code, message, headers, new_url):
        _check_scheme(new_url)
        if request.type == 'https' and urlsplit(new_url).scheme == 'http':
            raise FetchRefused(f'{request.full_url}: its redirect to {new_url} leaves https')
        return super().redirect_request(request, file, code, message, headers, new_url)


class _MinRateStream(io.RawIOBase):
    """Stream of a socket that raises TimeoutError if data arrive too slowly.

    The timeout of the socket alone does not suffice: it restarts with each byte.
    """

    def __init__(self, raw: io.RawIOBase, timeout: float) -> None:
        self.raw, self.timeout = raw, timeout
        self.started, self.waited, self.received = False, 0.0, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        start = time.monotonic()
        number = self.raw.readinto(buffer) or 0
        if self.started:  # the timeout of the socket covers the wait for the first byte
            self.waited += time.monotonic() - start
        self.started, self.received = True, self.received + number
        if self.waited > self.timeout:
            if number and self.received < MIN_BYTES_PER_S * self.waited:
                raise TimeoutError(
                    f'the server sent {self.received} bytes in {self.waited:.0f} s, '
                    f'less than {MIN_BYTES_PER_S} a second'
                )
            self.waited, self.received = 0.0, 0
        return number

    def close(self) -> None:
        self.raw.close()
        super().close()


class _MinRateResponse(HTTPResponse):
    def __init__(self, sock: socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        timeout = sock.gettimeout()
        if timeout is not None:
            self.fp = io.BufferedReader(_MinRateStream(self.fp.detach(), timeout))


class _HTTPConnection(HTTPConnection):
    response_class = _MinRateResponse


class _HTTPSConnection(HTTPSConnection):
    response_class = _MinRateResponse


class _HTTPHandler(HTTPHandler):
    def http_open(self, request: Request) -> HTTPResponse:
        return self.do_open(_HTTPConnection, request)


class _HTTPSHandler(HTTPSHandler):
    def https_open(self, request: Request) -> HTTPResponse:
        return self.do_open(_HTTPSConnection, request)


@lru_cache(maxsize=1)
def _opener() -> OpenerDirector:
    return build_opener(_RedirectHandler, _HTTPHandler, _HTTPSHandler)
