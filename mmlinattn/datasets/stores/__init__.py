"""Files that are not on this machine's disk, as MMEngine's file backends.

Importing registers them for ``http://``, ``https://`` and ``s3://``, so that data sets, transforms
and metrics of the frameworks read from there wherever their paths begin like this. Files of the
disk are read by a backend of this package, too, which refuses devices and named pipes.
"""

from .backend import StoreError, StoreRefused, StoreUnreachable
from .http import HTTPStore
from .local import RegularFiles
from .paths import first_files, is_there
from .s3 import S3Store
from .secrets import check_no_secrets

__all__ = [
    'HTTPStore',
    'RegularFiles',
    'S3Store',
    'StoreError',
    'StoreRefused',
    'StoreUnreachable',
    'check_no_secrets',
    'first_files',
    'is_there',
]
