"""Cached download of checkpoints. Downloaded files are read as safely as any other."""

import hashlib
import os
import re
from http.client import HTTPException
from pathlib import Path
from typing import BinaryIO, Optional
from urllib.error import URLError
from urllib.parse import urldefrag, urlsplit
from urllib.request import Request

import torch
from filelock import FileLock
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from ..utils import FetchRefused, check_size, open_request
from .errors import CheckpointError
from .write import atomic_checkpoint

BLOCK = 2**20
TIMEOUT_S = 30
# Released files have the hash in their names: ravlt_t-1a2b3c4d.pth.
HASH_IN_NAME = re.compile(r'-([0-9a-f]{8,64})\.\w+$')


def download(url: str) -> Path:
    """Return the cached copy of a URL and download it if it is missing.

    Copies are stored below ``torch.hub.get_dir()`` by their full URL, so files of the same name
    from two servers do not collide. Concurrent processes wait for one download.

    Args:
        url: an ``https`` URL. ``http``, where others can change the content in transit, needs
            ``MMLINATTN_ALLOW_HTTP=1`` in the environment. A sha256, or its first 8 or more
            digits, is checked if given: as ``#sha256=...`` after the URL, or else in the file
            name as in ``resnet50-0676ba61.pth``.

    Returns:
        path of the copy.

    Raises:
        CheckpointError: another scheme (also after a redirect), a redirect from https to http, no
            response, more than ``MMLINATTN_MAX_DOWNLOAD_GIB`` (4), an incomplete transfer, or
            another sha256.
    """
    address, fragment = urldefrag(url)
    expected = _expected_hash(url, address, fragment)
    _check_http(address)
    name = Path(urlsplit(address).path).name or 'checkpoint'
    folder = Path(torch.hub.get_dir()) / 'mmlinattn' / hashlib.sha256(address.encode()).hexdigest()
    path = folder / name
    # torch and MMEngine cache by file name alone, so their copy is used only if the hash matches.
    shared = Path(torch.hub.get_dir()) / 'checkpoints' / name
    if expected is not None and shared.is_file() and sha256_of(shared).startswith(expected):
        return shared
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / '.lock'):
        if not path.exists():
            with atomic_checkpoint(path) as temporary, temporary.open('wb') as file:
                _fetch(address, file)
                _check_hash(url, temporary, expected)
        else:
            _check_hash(url, path, expected)
    return path


def _expected_hash(url: str, address: str, fragment: str) -> Optional[str]:
    if fragment:
        kind, _, value = fragment.partition('=')
        if kind != 'sha256' or not re.fullmatch('[0-9a-f]{8,64}', value):
            raise CheckpointError(f'{url}: after # only sha256=<8 to 64 digits> is allowed')
        return value
    found = HASH_IN_NAME.search(urlsplit(address).path)
    return found[1] if found else None


def _check_http(address: str) -> None:
    if urlsplit(address).scheme == 'http' and os.environ.get('MMLINATTN_ALLOW_HTTP') != '1':
        raise CheckpointError(
            f'{address}: http is refused, since anybody on the way can change the file; use https, '
            'or set MMLINATTN_ALLOW_HTTP=1'
        )


def _fetch(address: str, file: BinaryIO) -> None:
    request = Request(address, headers={'User-Agent': 'mmlinattn'})
    try:
        with open_request(request, TIMEOUT_S) as response, _progress_bar() as bar:
            length = response.headers.get('Content-Length')
            total = int(length) if length else None
            check_size(address, total or 0)
            task, done = bar.add_task(Path(urlsplit(address).path).name, total=total), 0
            while block := response.read(BLOCK):
                done += len(block)
                check_size(address, done)
                file.write(block)
                bar.update(task, completed=done)
    except FetchRefused as error:
        raise CheckpointError(error) from error
    except (URLError, HTTPException, OSError, ValueError) as error:
        raise CheckpointError(f'{address} cannot be downloaded: {error}') from error
    if total is not None and done != total:
        raise CheckpointError(f'{address}: the transfer ended after {done} of {total} bytes')
    file.flush()


def _progress_bar() -> Progress:
    columns = (TextColumn('{task.description}', markup=False), BarColumn(), DownloadColumn())
    return Progress(*columns, TimeRemainingColumn(), transient=True)


def _check_hash(url: str, path: Path, expected: Optional[str]) -> None:
    if expected is None:
        return
    found = sha256_of(path)
    if not found.startswith(expected):
        raise CheckpointError(
            f'{url}: its sha256 begins with {found[:16]} and not with {expected}; if that file is '
            f'the right one, append #sha256={found[:16]} to the address'
        )


def sha256_of(path: Path) -> str:
    sha256 = hashlib.sha256()
    with path.open('rb') as file:
        while block := file.read(BLOCK):
            sha256.update(block)
    return sha256.hexdigest()
