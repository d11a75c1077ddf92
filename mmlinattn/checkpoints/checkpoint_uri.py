"""Checkpoint sources: paths, URLs, MMEngine's model zoos and file backends."""

import io
from pathlib import Path
from typing import BinaryIO, Callable, Dict
from urllib.parse import unquote, urlsplit

from mmengine import fileio
from mmengine.runner import checkpoint as mmengine_zoos

from ..utils import has_user
from .download import download
from .errors import CheckpointError
from .write import PathLike

NO_USER = (
    'an address with a user or a password ends in logs and configs; fetch the file by other means'
)


def open_source(source: PathLike) -> BinaryIO:
    """Open a checkpoint for reading and download it first if needed.

    Args:
        source: see :func:`mmlinattn.checkpoints.read_checkpoint`.

    Raises:
        FileNotFoundError: no such file.
        CheckpointError: the download fails, the model zoo lacks the name, the scheme is unknown,
            or the URL contains a user or a password.
    """
    text = str(source)
    scheme, separator, rest = text.partition('://')
    if not separator:
        return _open_local(Path(source).expanduser())
    if has_user(text):
        raise CheckpointError(f'{text} is refused: {NO_USER}')
    if scheme == 'file':
        return _open_local(Path(unquote(urlsplit(text).path)))
    if scheme in _ZOOS:
        return open_source(_address(scheme, rest))
    if scheme in ('http', 'https'):
        return download(text).open('rb')
    try:
        return io.BytesIO(fileio.get(text))
    except Exception as error:  # each storage client has its own exceptions
        raise CheckpointError(f'{text} cannot be read: {error}') from error


def _open_local(path: Path) -> BinaryIO:
    if path.is_dir():
        raise IsADirectoryError(f'checkpoint {path} is a folder')
    if not path.is_file():
        raise FileNotFoundError(f'checkpoint file {path} does not exist')
    return path.open('rb')


def _torchvision() -> Dict[str, str]:
    return mmengine_zoos.get_torchvision_models()


def _openmmlab() -> Dict[str, str]:
    names = mmengine_zoos.get_external_models()
    for old, new in mmengine_zoos.get_deprecated_model_names().items():
        if new in names:
            names[old] = names[new]
    # Users may add entries that are paths relative to MMEngine's folder.
    home = Path(mmengine_zoos._get_mmengine_home())
    return {name: where if '://' in where else str(home / where) for name, where in names.items()}


def package_weights() -> Dict[str, str]:
    """Return the file of each ``mmlinattn://NAME``, by NAME, which is that of its config.

    Example:
        >>> sorted(package_weights())
        ['faster-rcnn_ravlt-nano-linear_bccd', 'semantic-fpn_ravlt-nano_shapes']
    """
    files = Path(__file__).parents[1].joinpath('weights').glob('*.pth')
    return {path.stem.rpartition('-')[0]: str(path) for path in sorted(files)}


_ZOOS: Dict[str, Callable[[], Dict[str, str]]] = {
    'torchvision': _torchvision,
    'modelzoo': _torchvision,
    'open-mmlab': _openmmlab,
    'openmmlab': _openmmlab,
    'mmcls': lambda: mmengine_zoos.get_mmcls_models(),
    'mmlinattn': package_weights,
}


def _address(scheme: str, name: str) -> str:
    known = _ZOOS[scheme]()
    name, mark, fragment = name.partition('#')
    if name not in known:
        if scheme == 'mmlinattn':
            raise CheckpointError(
                f'{scheme}://{name}: this package has no such weights, but '
                f'{", ".join(sorted(known)) or "none"}'
            )
        raise CheckpointError(f'{scheme}://{name}: MMEngine knows no such model')
    return f'{known[name]}{mark}{fragment}'
