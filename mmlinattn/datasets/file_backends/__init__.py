"""MMEngine file backends for web servers, S3, tar shards and the local disk.

Importing registers them for ``http://``, ``https://``, ``s3://`` and ``shard://``, so data sets,
transforms and metrics of the frameworks accept such URLs as paths. The backend of the local disk is
replaced by one that rejects devices and named pipes.
"""

from mmengine.fileio.backends.registry_utils import backends, prefix_to_backends
from mmengine.fileio.io import backend_instances

from ...utils import replace_entry
from .base import StoreError, StoreRefused, StoreUnreachable
from .http import HTTPFileBackend
from .local import RegularFileBackend
from .paths import first_files, path_exists
from .s3 import S3FileBackend
from .secrets import check_no_secrets
from .tar_member import DamagedSample, TarMemberBackend

__all__ = [
    'DamagedSample',
    'HTTPFileBackend',
    'RegularFileBackend',
    'S3FileBackend',
    'StoreError',
    'StoreRefused',
    'StoreUnreachable',
    'TarMemberBackend',
    'check_no_secrets',
    'first_files',
    'path_exists',
    'register_file_backends',
]


def register_file_backends() -> None:
    """Register the file backends of this package with MMEngine, in place of those of these names.

    Importing this package calls it. See :func:`mmlinattn.utils.undo_replacements`.
    """
    for name, backend, prefixes in (
        ('http', HTTPFileBackend, ('http', 'https')),
        ('s3', S3FileBackend, ('s3',)),
        ('shard', TarMemberBackend, ('shard',)),
        ('local', RegularFileBackend, ('',)),
    ):
        what = f"MMEngine's file backend {name!r}"
        # MMEngine keeps backends that it has created.
        replace_entry(backends, name, backend, what, backend_instances.clear)
        for prefix in prefixes:
            what = f"MMEngine's file backend of {f'{prefix}://' if prefix else 'local paths'}"
            replace_entry(prefix_to_backends, prefix, backend, what, backend_instances.clear)


register_file_backends()
