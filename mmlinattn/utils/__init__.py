"""Utilities: atomic writes, downloads with limits, locks, URLs without secrets, checks."""

from .atomic_file import (
    WriteError,
    atomic_write,
    check_writable,
    remove_temporary_files,
    staged_folder,
    to_disk,
    write_json,
    write_text,
)
from .checks import check_integer, check_number
from .http import FetchRefused, check_size, open_request, size_limit
from .lock import FolderInUse, lock_folder, unlock_folders
from .nested import dicts, key_of, nodes
from .redact import has_user, redacted
from .regular_files import open_regular, outside_reason

__all__ = [
    'FetchRefused',
    'FolderInUse',
    'WriteError',
    'atomic_write',
    'check_integer',
    'check_number',
    'check_size',
    'check_writable',
    'dicts',
    'has_user',
    'key_of',
    'lock_folder',
    'nodes',
    'open_regular',
    'open_request',
    'outside_reason',
    'redacted',
    'remove_temporary_files',
    'size_limit',
    'staged_folder',
    'to_disk',
    'unlock_folders',
    'write_json',
    'write_text',
]
