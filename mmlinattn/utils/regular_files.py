"""Check that a file lies inside the folders of its data set, whose file names are not trusted."""

import os
import os.path as osp
from typing import Iterable, List, Optional


def outside_reason(path: str, folders: Iterable[str]) -> Optional[str]:
    """Return why a path is outside the folders of its data set, or None if it is inside.

    Links to folders are followed, because large data sets are often stored on another disk. A
    link to a file must point into one of the folders or into the folder of the link.

    Args:
        path: path or URL, already joined to a folder of the data set.
        folders: folders of the data set; if empty, every path is inside.

    Example:
        >>> outside_reason('data/coco/train2017/1.jpg', ['data/coco'])
        >>> outside_reason('data/coco/../../secret.png', ['data/coco'])
        "is outside of the folders of its data set, 'data/coco'"
    """
    folders = [*folders]
    named = ', '.join(map(repr, folders))
    remote = '://' in path
    known = [folder for folder in folders if ('://' in folder) == remote]
    try:
        if not folders or (_is_in_store if remote else _is_on_disk)(path, known):
            return None
        link = '' if remote or not osp.islink(path) else f'a link to {osp.realpath(path)}, '
    except ValueError:  # a null byte, or an unpaired surrogate
        return 'is no path that a file can have'
    return f'is {link}outside of the folders of its data set, {named}'


def _is_in_store(address: str, folders: List[str]) -> bool:
    # Servers may resolve '..', and a second scheme would select another store.
    whole = address.count('://') == 1 and '..' not in address.split('/')
    return whole and any(_is_below(address, folder) for folder in folders)


def _is_on_disk(path: str, folders: List[str]) -> bool:
    if any(_is_written_below(path, folder) for folder in folders):
        if not osp.islink(path):
            return True
        folders = [*folders, osp.dirname(path)]
    real = osp.realpath(path)
    return any(_is_below(real, osp.realpath(folder)) for folder in folders)


def _is_written_below(path: str, folder: str) -> bool:
    """Return True if the path is below the folder and has no '..' after it."""
    rest = path[len(folder) :] if path.startswith(folder) else path
    return '..' not in rest.split(os.sep) and _is_below(osp.abspath(path), osp.abspath(folder))


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(osp.join(folder, ''))
