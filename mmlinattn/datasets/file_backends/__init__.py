"""MMEngine file backends for web servers, S3 and the local disk.

Importing registers them for ``http://``, ``https://`` and ``s3://``, so data sets, transforms and
metrics of the frameworks accept such URLs as paths. The backend of the local disk is replaced by
one that rejects devices and named pipes.
"""

from .base import StoreError, StoreRefused, StoreUnreachable
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
