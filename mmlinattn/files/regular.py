"""Files on the disk that are safe to read: regular, not too large, inside the folders of their set.

The names come from annotation files, which others write. ``/dev/zero`` and a named pipe never end.
"""

import errno
import os
import os.path as osp
import stat
from typing import BinaryIO, Iterable, List, Optional

from .web import check_size

KINDS = {
    stat.S_IFIFO: 'a named pipe',
    stat.S_IFCHR: 'a device',
    stat.S_IFBLK: 'a device',
    stat.S_IFSOCK: 'a socket',
}


def open_regular(path: str, limited: bool = True) -> BinaryIO:
    """Open a regular file of the disk for reading; a named pipe does not block.

    Args:
        path: of the file.
        limited: refuse a file above the size limit, as one that will be read at once.

    Raises:
        OSError: the file cannot be opened or is not a regular one.
        FetchRefused: it is above the size limit (:func:`mmlinattn.files.check_size`).

    Example:
        >>> open_regular('/dev/zero')
        Traceback (most recent call last):
            ...
        OSError: [Errno 22] is a device, not a regular file: '/dev/zero'
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            kind = KINDS.get(stat.S_IFMT(status.st_mode), 'a folder')
            raise OSError(errno.EINVAL, f'is {kind}, not a regular file', str(path))
        if limited:
            check_size(str(path), status.st_size)
        return open(descriptor, 'rb')
    except BaseException:
        os.close(descriptor)
        raise


def why_outside(path: str, folders: Iterable[str]) -> Optional[str]:
    """Say how a path leads out of the folders of its data set; None if it does not.

    Links to folders are followed, as large sets are often kept on another disk. A link to a single
    file must lead into one of the folders, or into its own.

    Args:
        path: as the data set joins it to one of the folders, of the disk or of a store.
        folders: of the data set; without any, every path is inside.

    Example:
        >>> why_outside('data/coco/train2017/1.jpg', ['data/coco'])
        >>> why_outside('data/coco/../../secret.png', ['data/coco'])
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
    except ValueError:  # a null byte, or half of a character
        return 'is no path that a file can have'
    return f'is {link}outside of the folders of its data set, {named}'


def _is_in_store(address: str, folders: List[str]) -> bool:
    # Servers may resolve '..'; a second scheme would be another store.
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
    """Return True if the path names a file below the folder, without going up from there."""
    rest = path[len(folder) :] if path.startswith(folder) else path
    return '..' not in rest.split(os.sep) and _is_below(osp.abspath(path), osp.abspath(folder))


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(osp.join(folder, ''))
