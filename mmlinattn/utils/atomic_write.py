"""Files that are whole or not there."""

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator


class NotWritten(OSError):
    """A file that cannot be written; what had its name before is as it was."""


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A file to write to that takes the name ``path`` when the block ends without an error.

    It lies beside ``path`` and is on the disk before it takes the name, so that a kill or a
    power cut leaves either the old content or the new one. After an error it is removed.

    Args:
        path: the final name; its folder must be there.

    Raises:
        NotWritten: the folder cannot be written to, the disk is full, or ``path`` is something
            else than a regular file, such as ``/dev/null``. ``path`` is as before.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / 'a.txt'
        >>> with whole_file(path) as temporary:
        ...     _ = temporary.write_text('all of it')
        >>> path.read_text()
        'all of it'
    """
    _check_replaceable(path)
    temporary = path.with_name(f'.{path.name}.{os.getpid()}.tmp')
    try:
        yield temporary
        to_disk(temporary)
        os.replace(temporary, path)
        to_disk(path.parent)
    except OSError as error:
        raise NotWritten(
            f'{path} cannot be written: {error.strerror or error}; older files are as they were'
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def remove_remains(folder: Path) -> None:
    """Remove the temporary files that killed processes have left of :func:`whole_file`.

    Files of processes that are running on this machine stay: such a process is still writing.
    """
    for path in folder.glob('.*.*.tmp'):
        process = path.name.rsplit('.', 2)[1]
        if not (process.isdigit() and _is_running(int(process))):
            path.unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    """Return True for another process that is running; this one is not writing now."""
    if process == os.getpid():
        return False
    try:
        os.kill(process, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True


def check_writable(path: Path) -> None:
    """Can a file of this name be written? Asked before the work that makes its content.

    Folders above it that are not there are made.

    Raises:
        NotWritten: it cannot.

    Example:
        >>> check_writable(Path('/dev/null/out.json'))
        Traceback (most recent call last):
            ...
        mmlinattn.utils.atomic_write.NotWritten: /dev/null/out.json cannot be written: File exists
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise NotWritten(f'{path} cannot be written: {error.strerror or error}') from error
    _check_replaceable(path)


def _check_replaceable(path: Path) -> None:
    if path.exists() and not path.is_file():
        kind = 'a folder' if path.is_dir() else 'not a regular file'
        raise NotWritten(f'{path} cannot be written: it is {kind}')


def to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
