"""The local disk as a file backend of MMEngine that reads regular files only."""

import errno
import io
import os
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator, Union

from mmengine.fileio import LocalBackend, register_backend

from ...files import open_regular


@register_backend('local', prefixes='', force=True)
class RegularFiles(LocalBackend):
    """MMEngine's backend of the local disk, which reads regular files only.

    Importing registers it in place of MMEngine's, so that no data set, transform or metric waits
    for a named pipe or reads a device until memory ends.

    Raises:
        OSError: of what is read, it is not a regular file, or there is no memory for it.
        FetchRefused: of what is read, it is above the size limit
            (:func:`mmlinattn.files.check_size`).
    """

    def get(self, filepath: Union[str, Path]) -> bytes:
        """Return the content of a file."""
        with open_regular(str(filepath)) as file:
            try:
                return file.read()
            except MemoryError as error:
                raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), str(filepath)) from error

    def get_text(self, filepath: Union[str, Path], encoding: str = 'utf-8') -> str:
        """Return the content of a text file, with any line ends as ``\\n``."""
        return io.TextIOWrapper(io.BytesIO(self.get(filepath)), encoding=encoding).read()

    @contextmanager
    def get_local_path(self, filepath: Union[str, Path]) -> Iterator[Union[str, Path]]:
        """Yield the path itself, after a check of the file; a folder is not checked."""
        if not os.path.isdir(filepath):
            open_regular(str(filepath), limited=False).close()
        yield filepath
