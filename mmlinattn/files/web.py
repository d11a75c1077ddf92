"""What holds for every file that comes over the network: where from, and how long it may be."""

import os
from contextlib import contextmanager
from functools import lru_cache
from http.client import HTTPResponse
from typing import Iterator
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, Request, build_opener

from .addresses import redacted

GIB = 2**30


class FetchRefused(OSError):
    """A file that may not be fetched; the message names its address, without what is secret."""

    def __init__(self, message: object = '') -> None:
        super().__init__(redacted(str(message)))


def check_size(address: str, size: int) -> None:
    """Raises FetchRefused for more than ``MMLINATTN_MAX_DOWNLOAD_GIB`` (4) of the environment."""
    limit = size_limit()
    if size > limit:
        raise FetchRefused(
            f'{address} has more than {limit / GIB:g} GiB, the limit that '
            'MMLINATTN_MAX_DOWNLOAD_GIB sets'
        )


def size_limit() -> int:
    """How many bytes one file may have."""
    return int(float(os.environ.get('MMLINATTN_MAX_DOWNLOAD_GIB', 4)) * GIB)


@contextmanager
def opened(request: Request, timeout: float) -> Iterator[HTTPResponse]:
    """The answer to a request of the web, after redirects that keep it as safe as it was.

    Args:
        request: of an ``https`` or ``http`` address.
        timeout: seconds without an answer.

    Raises:
        FetchRefused: another scheme, also after a redirect, or a redirect from https to http.
        OSError, HTTPException: see ``urllib.request.urlopen``.
    """
    _check_scheme(request.full_url)
    with _opener().open(request, timeout=timeout) as answer:
        yield answer


def _check_scheme(address: str) -> None:
    scheme = urlsplit(address).scheme
    if scheme not in ('http', 'https'):
        raise FetchRefused(f'{address}: {scheme!r} is not https')


class _AsSafe(HTTPRedirectHandler):
    def redirect_request(self, request, file, code, message, headers, new_url):
        _check_scheme(new_url)
        if request.type == 'https' and urlsplit(new_url).scheme == 'http':
            raise FetchRefused(f'{request.full_url}: its redirect to {new_url} leaves https')
        return super().redirect_request(request, file, code, message, headers, new_url)


@lru_cache(maxsize=1)
def _opener() -> OpenerDirector:
    return build_opener(_AsSafe)
