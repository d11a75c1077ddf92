"""Checkpoint sources: paths, URLs, names of MMEngine's model zoos and of this package."""

import hashlib
import io
import re
from pathlib import Path
from typing import BinaryIO, Callable, Dict, Optional
from urllib.parse import unquote, urlsplit

import torch
from filelock import FileLock
from mmengine import fileio
from mmengine.fileio.backends import prefix_to_backends
from mmengine.runner import checkpoint as mmengine_zoos

from ..utils import has_user
from ..utils.pretrained import SAFE
from .errors import CheckpointError
from .write import PathLike

# Released files have the beginning of their sha256 in their names: ravlt_t-1a2b3c4d.pth.
HASH_IN_NAME = re.compile(r'-([0-9a-f]{8,64})\.\w+$')


def package_weights() -> Dict[str, str]:
    """Return the file of each ``mmlinattn://NAME``, by NAME, which is that of its config.

    Example:
        >>> sorted(package_weights())
        ['mask-rcnn_ravlt-nano-linear_nuclei', 'semantic-fpn_ravlt-nano-linear_nuclei']
    """
    files = Path(__file__).parents[1].joinpath('weights').glob('*.pth')
    return {path.stem.rpartition('-')[0]: str(path) for path in sorted(files)}


ZOOS: Dict[str, Callable[[], Dict[str, str]]] = {
    'torchvision': lambda: mmengine_zoos.get_torchvision_models(),
    'open-mmlab': lambda: mmengine_zoos.get_external_models(),
    'mmcls': lambda: mmengine_zoos.get_mmcls_models(),
    'mmlinattn': package_weights,
}


def open_source(source: PathLike) -> BinaryIO:
    """Open a checkpoint for reading and download it first if needed, see :func:`.read_checkpoint`.

    Raises:
        FileNotFoundError: no such file.
        IsADirectoryError: the path is a folder.
        CheckpointError: the download fails, the model zoo lacks the name, the scheme is unknown,
            or the URL contains a user or a password.
    """
    text = str(source)
    scheme, _, rest = text.partition('://')
    if has_user(text):
        raise CheckpointError(
            f'{text} is refused: an address with a user or a password ends in logs and configs; '
            'fetch the file by other means'
        )
    path = local_path(text)
    if path is not None:
        if path.is_dir():
            raise IsADirectoryError(f'checkpoint {path} is a folder')
        if not path.is_file():
            raise FileNotFoundError(f'checkpoint file {path} does not exist')
        return path.open('rb')
    if scheme in ZOOS:
        known = ZOOS[scheme]()
        if rest not in known:
            owner, names = 'MMEngine', ''
            if scheme == 'mmlinattn':
                owner, names = 'this package', f', but {", ".join(sorted(known))}'
            raise CheckpointError(f'{text}: {owner} has no such weights{names}')
        return open_source(known[rest])
    if scheme in ('http', 'https'):
        return download(text).open('rb')
    if scheme not in prefix_to_backends:
        raise CheckpointError(
            f'{text}: MMEngine has no file backend {scheme!r}; download the file and name its path'
        )
    try:
        return io.BytesIO(fileio.get(text))
    except Exception as error:  # each storage client has its own exceptions
        raise CheckpointError(f'{text} cannot be read: {error}') from error


def local_path(source: PathLike) -> Optional[Path]:
    """Return the path of a source on this machine, None of an address elsewhere.

    Raises:
        CheckpointError: an address of a file has a host, as ``file://folder/a.pth``.
    """
    text = str(source).removeprefix(SAFE)
    scheme, separator, _ = text.partition('://')
    if separator and scheme != 'file':
        return None
    parts = urlsplit(text) if separator else None
    if parts and parts.netloc not in ('', 'localhost'):
        raise CheckpointError(f'{text} names the host {parts.netloc!r}: write file:///FOLDER/FILE')
    return Path(unquote(parts.path) if parts else text).expanduser()


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
