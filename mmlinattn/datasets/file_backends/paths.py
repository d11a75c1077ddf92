"""Questions about paths of any store, the local disk included."""

from itertools import islice
from typing import List, Optional

from mmengine.fileio import get_file_backend

from .http import HTTPStore


def is_there(path: str, backend_args: Optional[dict] = None, folder: bool = False) -> bool:
    """Is there such a file or folder?

    Args:
        path: of either.
        backend_args: of the data set; by default the path itself tells the store.
        folder: it is one; those of a web server count as there, as it cannot tell.

    Raises:
        OSError: the store does not answer the question.
    """
    try:
        backend = get_file_backend(path, backend_args=backend_args, enable_singleton=True)
    except KeyError as error:
        raise ValueError(f'{path!r}: no file backend is known as {error}') from error
    if folder and isinstance(backend, HTTPStore):
        return True
    # Backends of others need not know.
    return backend.exists(path) if hasattr(backend, 'exists') else True


def first_files(folder: str, limit: int, backend_args: Optional[dict] = None) -> List[str]:
    """The first files below a folder, of as many as are listed first."""
    backend = get_file_backend(folder, backend_args=backend_args, enable_singleton=True)
    if not backend.exists(folder) or isinstance(backend, HTTPStore):
        return []
    files = backend.list_dir_or_file(folder, list_dir=False, recursive=True)
    return sorted(islice(files, 10_000))[:limit]
