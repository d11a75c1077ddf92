"""Checks that local files are safe to read: regular, not too large, inside the data set's folders.

File names come from annotation files, which are not trusted: ``/dev/zero`` and a named pipe never
end.
"""

import errno
import os
import os.path as osp
import stat
from typing import BinaryIO, Iterable, List, Optional

from .http import check_size

KINDS = {
    stat.S_IFIFO: 'a named pipe',
    stat.S_IFCHR: 'a device',
    stat.S_IFBLK: 'a device',
    stat.S_IFSOCK: 'a socket',
}


def open_regular(path: str, limited: bool = True) -> BinaryIO:
    """Open a regular local file for reading, without blocking on a named pipe.

    Args:
        path: path of the file.
        limited: apply the size limit, for files that are read at once.

    Raises:
        OSError: the file cannot be opened or is not a regular file.
        FetchRefused: the file is above the size limit (:func:`mmlinattn.utils.check_size`).

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
