"""File backend for the local disk that reads only regular files."""

import errno
import io
import os
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator, Union

from mmengine.fileio import LocalBackend

from ...utils import open_regular
from .tar_member import TarMemberBackend, is_tar_member


class RegularFileBackend(LocalBackend):
    """Local file backend of MMEngine that reads only regular files.

    No data set, transform or metric then blocks on
    a named pipe or reads a device until memory is exhausted.

    Raises:
        OSError: on reading, the path is not a regular file, or memory does not suffice.
        FetchRefused: on reading, the file is above the size limit
            (:func:`mmlinattn.utils.check_size`).
    """

    def get(self, filepath: Union[str, Path]) -> bytes:
        """Return the content of a file."""
        if is_tar_member(filepath):
            return TarMemberBackend().get(filepath)
        with open_regular(str(filepath)) as file:
            try:
                return file.read()
            except MemoryError as error:
                raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), str(filepath)) from error

    def get_text(self, filepath: Union[str, Path], encoding: str = 'utf-8') -> str:
        """Return the content of a text file, with all line ends converted to ``\\n``."""
        return io.TextIOWrapper(io.BytesIO(self.get(filepath)), encoding=encoding).read()

    @contextmanager
    def get_local_path(self, filepath: Union[str, Path]) -> Iterator[Union[str, Path]]:
        """Yield the path itself after checking the file; folders are not checked."""
        if not os.path.isdir(filepath):
            open_regular(str(filepath), limited=False).close()
        yield filepath
