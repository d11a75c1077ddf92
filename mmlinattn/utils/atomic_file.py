"""Atomic writing of files."""

import json
import os
import re
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator, Optional


class WriteError(OSError):
    """Error for a file that cannot be written; an existing file is unchanged."""


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary file that replaces ``path`` when the block ends without an error.

    It is flushed to disk before it is renamed, so a kill or a power cut leaves either the old
    content or the new one. After an error it is removed.

    Args:
        path: the final name; its folder must exist.

    Raises:
        WriteError: the folder is not writable, the disk is full, or ``path`` is not a regular
            file, such as ``/dev/null``. ``path`` is unchanged.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / 'a.txt'
        >>> with atomic_write(path) as temporary:
        ...     _ = temporary.write_text('all of it')
        >>> path.read_text()
        'all of it'
    """
    _check_replaceable(path)
    # Not with the name of the file, which may be as long as the file system allows.
    temporary = path.with_name(f'.{os.getpid()}-{abs(hash(path.name)):x}.tmp')
    try:
        yield temporary
        _to_disk(temporary)
        os.replace(temporary, path)
        _to_disk(path.parent)
    except OSError as error:
        raise WriteError(
            f'{path} cannot be written: {error.strerror or error}; older files are as they were'
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def remove_temporaries(folder: Path) -> None:
    """Remove what killed processes left of :func:`atomic_write` in a folder."""
    for path in folder.glob('.*.tmp'):
        if re.fullmatch(r'\.\d+-[0-9a-f]+\.tmp', path.name):
            path.unlink()


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8 by :func:`atomic_write`; missing folders are created.

    Raises:
        WriteError: the file cannot be written; an older file is unchanged.
    """
    check_writable(path)
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding='utf-8')


def write_json(path: Path, value: object, indent: Optional[int] = 2) -> None:
    """Write a JSON file by :func:`write_text`."""
    write_text(path, json.dumps(value, indent=indent) + '\n')


@contextmanager
def staged_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder beside ``path`` that is renamed to ``path`` when the block ends.

    It is removed after an error. A block that has moved or removed it leaves nothing to rename.

    Raises:
        WriteError: the disk is full.
        OSError: the folder cannot be written, or ``path`` has become a folder with files.
    """
    staging = path.with_name(f'.{path.name}.partial-{os.getpid()}')
    shutil.rmtree(staging, ignore_errors=True)  # of a killed process with the same number
    staging.mkdir(parents=True)
    try:
        yield staging
        if staging.exists():
            os.replace(staging, path)
    except OSError as error:
        if error.errno is None or error.filename is not None:  # not of the disk
            raise
        raise WriteError(f'{path} cannot be written: {error.strerror or error}') from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def check_writable(path: Path) -> None:
    """Check that a file can be written, before its content is computed.

    Missing folders are created.

    Raises:
        WriteError: the file cannot be written.

    Example:
        >>> check_writable(Path('/dev/null/a'))
        Traceback (most recent call last):
            ...
        mmlinattn.utils.atomic_file.WriteError: /dev/null/a cannot be written: /dev/null is a file
    """
    for parent in path.parents:
        if os.path.exists(parent) and not os.path.isdir(parent):
            raise WriteError(f'{path} cannot be written: {parent} is a file')
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent) as file:
            file.write(bytes(4096))  # a full disk still takes empty files
    except OSError as error:
        raise WriteError(f'{path} cannot be written: {error.strerror or error}') from error
    _check_replaceable(path)


def _check_replaceable(path: Path) -> None:
    # Path.exists raises an error for names that are too long.
    if os.path.exists(path) and not os.path.isfile(path):
        kind = 'a folder' if path.is_dir() else 'not a regular file'
        raise WriteError(f'{path} cannot be written: it is {kind}')


def _to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
