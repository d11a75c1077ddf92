"""Utilities: atomic writes, URLs without secrets, checks."""

from .atomic_file import (
    WriteError,
    atomic_write,
    check_writable,
    remove_temporaries,
    staged_folder,
    write_json,
    write_text,
)
from .checks import check_integer, check_number
from .nested import dicts, key_of, nodes, type_name
from .redact import escaped, has_user, redacted
from .regular_files import outside_reason

__all__ = [
    'WriteError', 'atomic_write', 'check_integer', 'check_number', 'check_writable', 'dicts',
    'escaped', 'has_user', 'key_of', 'nodes', 'outside_reason', 'redacted', 'remove_temporaries',
    'staged_folder', 'type_name', 'write_json', 'write_text',
]  # fmt: skip
