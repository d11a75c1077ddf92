"""Queries about paths of any file backend, the local disk included."""

from itertools import islice
from typing import List, Optional

from mmengine.fileio import get_file_backend

from .http import HTTPFileBackend
from .tar_member import TarMemberBackend, is_tar_member


def path_exists(path: str, backend_args: Optional[dict] = None, folder: bool = False) -> bool:
    """Return True if a file or folder exists.

    Args:
        path: path or URL of the file or folder.
        backend_args: those of the data set; by default the path determines the file backend.
        folder: the path is a folder. Folders of a web server always count as existing, because
            they cannot be queried.

    Raises:
        OSError: the request fails.
        ValueError: no file backend is registered for the path.
    """
    if is_tar_member(path):
        return TarMemberBackend().exists(path)
    try:
        backend = get_file_backend(path, backend_args=backend_args, enable_singleton=True)
    except KeyError as error:
        raise ValueError(f'{path!r}: no file backend is known as {error}') from error
    if folder and isinstance(backend, HTTPFileBackend):
        return True
    # Third-party backends may lack the method.
    return backend.exists(path) if hasattr(backend, 'exists') else True


def first_files(folder: str, limit: int, backend_args: Optional[dict] = None) -> List[str]:
    """Return the first ``limit`` files below a folder, sorted, out of the first 10 000 listed."""
    backend = get_file_backend(folder, backend_args=backend_args, enable_singleton=True)
    if not backend.exists(folder) or isinstance(backend, HTTPFileBackend):
        return []
    files = backend.list_dir_or_file(folder, list_dir=False, recursive=True)
    return sorted(islice(files, 10_000))[:limit]
