"""What holds for every file: written whole, fetched within limits, named without secrets."""

from .addresses import has_user, redacted
from .regular import open_regular, why_outside
from .web import FetchRefused, check_size, opened, size_limit
from .whole import NotWritten, check_writable, to_disk, whole_file

__all__ = [
    'FetchRefused',
    'NotWritten',
    'check_size',
    'check_writable',
    'has_user',
    'open_regular',
    'opened',
    'redacted',
    'size_limit',
    'to_disk',
    'whole_file',
    'why_outside',
]
