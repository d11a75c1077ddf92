"""File utilities: atomic writes, downloads with limits, locks, URLs without secrets."""

from .atomic_write import NotWritten, check_writable, remove_remains, to_disk, whole_file
from .http import FetchRefused, check_size, opened, size_limit
from .lock import FolderInUse, lock_folder, unlock_folders
from .redact import has_user, redacted
from .regular import open_regular, why_outside

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
