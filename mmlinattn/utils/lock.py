"""Folder locks that are released when the process ends."""

import errno
import os
import socket
from pathlib import Path
from typing import Dict, TextIO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]  # a module that may be missing

from .atomic_file import WriteError, check_writable

LOCK = '.training.lock'
# Errors of a file system without locks, such as NFS without its lock service.
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL)
IN_USE = (errno.EACCES, errno.EAGAIN)

# Locks of this process. Closing any other descriptor of such a file would release its lock.
_held: Dict[Path, TextIO] = {}


class FolderInUse(OSError):
    """Error for a folder that another process has locked; the message names that process."""


def lock_folder(folder: Path) -> bool:
    """Lock a folder for this process, until :func:`unlock_folders` or the end of the process.

    The lock is a POSIX record lock. Forked data-loader workers do not inherit it, so killing a
    training always releases it, and over NFS it is visible to other machines. ``filelock`` before
    version 4 lets forked workers inherit its lock and empties the file of another holder.

    Args:
        folder: created if it is missing.

    Returns:
        True if this process has the lock, also from an earlier call. False if the file system has
        no locks.

    Raises:
        FolderInUse: another process has locked the folder.
        WriteError: the folder cannot be written to.

    Example:
        >>> import tempfile
        >>> lock_folder(Path(tempfile.mkdtemp()))
        True
        >>> unlock_folders()
    """
    path = folder.resolve() / LOCK
    if path in _held:
        return True
    if fcntl is None:
        return False
    check_writable(path)
    try:
        while True:
            file = path.open('a+')
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(file.fileno()).st_nlink:
                    break
            except OSError as error:
                return _refused(error, folder, file)
            file.close()  # the former holder has removed the file meanwhile, so try again
        file.truncate(0)
        file.write(f'process {os.getpid()} on {socket.gethostname()}')
        file.flush()
        os.fsync(file.fileno())
    except FolderInUse:
        raise
    except OSError as error:
        raise WriteError(f'{path} cannot be written: {error.strerror or error}') from error
    _held[path] = file
    return True


def _refused(error: OSError, folder: Path, file: TextIO) -> bool:
    with file:
        if error.errno in NO_LOCKS:
            os.unlink(file.name)
            return False
        if error.errno not in IN_USE:
            raise error
        file.seek(0)
        holder = file.read().strip() or 'another process'
    raise FolderInUse(
        f'{folder} is in use by the training of {holder}; end that training or choose another '
        'folder with --work-dir'
    ) from error


def unlock_folders() -> None:
    """Release all locks of this process and remove their files."""
    while _held:
        path, file = _held.popitem()
        path.unlink(missing_ok=True)
        file.close()
