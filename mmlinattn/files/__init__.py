"""What holds for every file: written whole, fetched within limits, named without secrets."""

from .addresses import has_user, redacted
from .lock import FolderInUse, lock_folder, unlock_folders
from .regular import open_regular, why_outside
from .web import FetchRefused, check_size, opened, size_limit
from .whole import NotWritten, check_writable, remove_remains, to_disk, whole_file

__all__ = [
    'FetchRefused',
    'FolderInUse',
    'NotWritten',
    'check_size',
    'check_writable',
    'has_user',
    'lock_folder',
    'open_regular',
    'opened',
    'redacted',
    'remove_remains',
    'size_limit',
    'to_disk',
    'unlock_folders',
    'whole_file',
    'why_outside',
]
