"""File backend for S3 and compatible stores (MinIO, Ceph, R2, ...)."""

import os
from functools import lru_cache
from typing import Any, Iterator, Optional, Tuple, Union

from ...utils import FetchRefused, check_size, redacted
from .base import RemoteFileBackend, StoreError, StoreRefused, TransientError, error_of_status

TRANSIENT_CODES = ('RequestTimeout', 'SlowDown', 'Throttling', 'ThrottlingException')


class S3FileBackend(RemoteFileBackend):
    """File backend for ``s3://bucket/key`` (needs boto3: ``pip install boto3``).

    boto3 finds credentials, region and endpoint in the environment; a config must not contain
    credentials. It reads ``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``, ``AWS_PROFILE``,
    ``AWS_DEFAULT_REGION``, ``AWS_ENDPOINT_URL`` for a server other than Amazon's, or the role of
    the machine.

    Args:
        anonymous: send requests without credentials, for public objects.
        endpoint_url: URL of the server; default: ``AWS_ENDPOINT_URL``, else Amazon's.
        attempts, timeout: see :class:`.base.RemoteFileBackend`, also for the errors.

    Raises:
        ImportError: on reading, boto3 is not installed.

    Example::

        fileio.get('s3://open/a.jpg', backend_args=dict(backend='s3', anonymous=True))
    """

    def __init__(
        self, anonymous: bool = False, endpoint_url: Optional[str] = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.anonymous = anonymous
        self.endpoint_url = endpoint_url

    def fetch(self, url: str, part: Optional[tuple] = None) -> bytes:
        options = {}
        if part is not None:
            options['Range'] = f'bytes={part[0]}-{part[0] + part[1] - 1}'
        response = self._request(url, 'get_object', **_location(url), **options)
        try:
            check_size(url, response['ContentLength'])
            return response['Body'].read()
        except FetchRefused as error:
            response['Body'].close()
            raise StoreError(str(error)) from None
        except Exception as error:  # of botocore or urllib3, all for an incomplete response
            raise TransientError(f'{type(error).__name__} in the middle of the file') from None

    def put(self, obj: Union[bytes, memoryview], filepath: str) -> None:
        """Write an object atomically."""
        self.retry(
            filepath,
            lambda: self._request(filepath, 'put_object', Body=obj, **_location(filepath)),
        )

    def put_text(self, obj: str, filepath: str, encoding: str = 'utf-8') -> None:
        self.put(obj.encode(encoding), filepath)

    def remove(self, filepath: str) -> None:
        self.retry(
            filepath, lambda: self._request(filepath, 'delete_object', **_location(filepath))
        )

    def isfile(self, filepath: str) -> bool:
        location = _location(filepath)
        if not location['Key']:
            return False
        try:
            self.retry(filepath, lambda: self._request(filepath, 'head_object', **location))
        except FileNotFoundError:
            return False
        return True

    def isdir(self, filepath: str) -> bool:
        return next(self.list_dir_or_file(filepath), None) is not None

    def list_dir_or_file(
        self,
        dir_path: str,
        list_dir: bool = True,
        list_file: bool = True,
        suffix: Any = None,
        recursive: bool = False,
    ) -> Iterator[str]:
        location = _location(dir_path)
        start = location['Key'].rstrip('/') + '/' if location['Key'].strip('/') else ''
        options = dict(Bucket=location['Bucket'], Prefix=start)
        if not recursive:
            options['Delimiter'] = '/'
        seen = set()
        while True:
            page = self.retry(
                dir_path, lambda: self._request(dir_path, 'list_objects_v2', **options)
            )
            names = [item['Key'][len(start) :] for item in page.get('Contents', ())]
            folders = [f['Prefix'][len(start) :] for f in page.get('CommonPrefixes', ())]
            for name in names:
                folders += [name[: i + 1] for i, c in enumerate(name) if c == '/']
            for folder in folders if list_dir else ():
                if folder not in seen:
                    seen.add(folder)
                    yield folder.rstrip('/')
            for name in names:
                # A key that ends in a slash represents a folder.
                is_file = name and not name.endswith('/')
                if list_file and is_file and (suffix is None or name.endswith(suffix)):
                    yield name
            if not page.get('IsTruncated'):
                return
            options['ContinuationToken'] = page['NextContinuationToken']

    def _request(self, url: str, operation: str, **arguments: Any) -> Any:
        client, errors = _client(os.getpid(), self.anonymous, self.endpoint_url, self.timeout)
        try:
            return getattr(client, operation)(**arguments)
        except errors.ClientError as error:
            status = error.response.get('ResponseMetadata', {}).get('HTTPStatusCode', 0)
            code = error.response.get('Error', {}).get('Code', '')
            if code in TRANSIENT_CODES:
                raise TransientError(f'{code} (HTTP {status})') from None
            raise error_of_status(url, status, '' if code.isdigit() else code) from None
        except (errors.NoCredentialsError, errors.PartialCredentialsError):
            raise StoreRefused(
                f'{redacted(url)}: no credentials in the environment (AWS_ACCESS_KEY_ID, ...); for '
                "what is open to all: backend_args=dict(backend='s3', anonymous=True)"
            ) from None
        except (errors.HTTPClientError, errors.ConnectionError) as error:
            raise TransientError(type(error).__name__) from None
        except errors.BotoCoreError as error:
            # The text of the error may contain the complete request.
            raise StoreError(f'{redacted(url)}: {type(error).__name__} of botocore') from None


@lru_cache(maxsize=8)
def _client(pid: int, anonymous: bool, endpoint_url: Optional[str], timeout: float) -> Tuple:
    """Return the client of this process; a fork must not share connections with its parent."""
    try:
        import botocore
        from boto3.session import Session
        from botocore import exceptions
        from botocore.config import Config
    except ImportError as error:
        raise ImportError(f's3:// needs boto3: pip install boto3 ({error})') from error
    config = Config(
        # RemoteFileBackend repeats failed requests, also those that fail while the body is read.
        retries=dict(total_max_attempts=1),
        connect_timeout=timeout,
        read_timeout=timeout,
        signature_version=botocore.UNSIGNED if anonymous else None,
    )
    return Session().client('s3', config=config, endpoint_url=endpoint_url), exceptions


def _location(url: str) -> dict:
    # Keys may contain ? and #, which urlsplit would split off.
    bucket, _, key = url.partition('://')[2].partition('/')
    if not bucket:
        raise ValueError(f'{url!r} names no bucket: s3://bucket/key')
    return dict(Bucket=bucket, Key=key)
