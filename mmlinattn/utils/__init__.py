"""Utilities: atomic writes, downloads with limits, URLs without secrets, checks."""

from .atomic_file import (
    WriteError,
    atomic_write,
    check_writable,
    staged_folder,
    write_json,
    write_text,
)
from .checks import check_integer, check_number
from .http import FetchRefused, check_size, open_request, size_limit
from .nested import dicts, key_of, nodes
from .redact import has_user, redacted
from .regular_files import open_regular, outside_reason

__all__ = [
    'FetchRefused',
    'WriteError',
    'atomic_write',
    'check_integer',
    'check_number',
    'check_size',
    'check_writable',
    'dicts',
    'has_user',
    'key_of',
    'nodes',
    'open_regular',
    'open_request',
    'outside_reason',
    'redacted',
    'size_limit',
    'staged_folder',
    'write_json',
    'write_text',
]
