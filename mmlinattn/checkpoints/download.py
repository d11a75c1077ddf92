"""Download of checkpoints by torch.hub. Downloaded files are read as safely as any other."""

import hashlib
import re
from pathlib import Path
from urllib.parse import urlsplit

import torch
from filelock import FileLock

from .errors import CheckpointError

# Released files have the beginning of their sha256 in their names: ravlt_t-1a2b3c4d.pth.
HASH_IN_NAME = re.compile(r'-([0-9a-f]{8,64})\.\w+$')


def download(url: str) -> Path:
    """Return the local copy of an ``https`` URL, and download it if it is missing.

    A file with a sha256 in its name is checked and kept where torch keeps its downloads. Other
    files are kept by their full URL, so files of the same name from two servers do not collide.

    Raises:
        CheckpointError: another scheme, no response, or another sha256 than in the name.
    """
    if not url.startswith('https://'):
        raise CheckpointError(f'{url}: its content can be changed on the way; use https')
    name = Path(urlsplit(url).path).name or 'checkpoint'
    expected = HASH_IN_NAME.search(name)
    folder = Path(torch.hub.get_dir())
    if expected:
        folder = folder / 'checkpoints'
    else:
        folder = folder / 'mmlinattn' / hashlib.sha256(url.encode()).hexdigest()
    path = folder / name
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(f'{path}.lock'):  # the other processes of a training wait
        if not path.exists():
            try:
                torch.hub.download_url_to_file(url, str(path), expected and expected[1])
            except (OSError, RuntimeError) as error:  # the latter for another sha256
                raise CheckpointError(f'{url} cannot be downloaded: {error}') from error
    return path


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file in hexadecimal digits."""
    sha256 = hashlib.sha256()
    with path.open('rb') as file:
        while block := file.read(2**20):
            sha256.update(block)
    return sha256.hexdigest()
