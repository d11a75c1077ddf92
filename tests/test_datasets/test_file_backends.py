"""Files of web servers and object stores: faults that pass, faults that stay, and no secrets."""

import multiprocessing
import os
import pickle
import sys
import threading
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Dict, List
from urllib.request import Request

import pytest
from mmengine import fileio
from mmengine.logging import MMLogger
from torch.utils.data import DataLoader, Dataset

from mmlinattn.checkpoints import CheckpointError, read_checkpoint
from mmlinattn.datasets.file_backends import (
    HTTPFileBackend,
    S3FileBackend,
    StoreError,
    StoreRefused,
    StoreUnreachable,
    check_no_secrets,
    first_files,
    path_exists,
)
from mmlinattn.datasets.file_backends import (
    base as backend,
)
from mmlinattn.utils import http as web
from tests.object_store import KEY_ID, SECRET

CONTENT = bytes(range(256)) * 40


class Server(ThreadingHTTPServer):
    """Serves ``files``; each request takes the next of ``faults`` first, while there is one."""

    def __init__(self) -> None:
        super().__init__(('127.0.0.1', 0), Handler)
        self.files: Dict[str, bytes] = {}
        self.faults: List[Any] = []
        self.moved: Dict[str, str] = {}
        self.requests: List[tuple] = []
        self.url = f'http://127.0.0.1:{self.server_port}'


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.requests.append((self.command, self.path, self.headers.get('Range')))
        fault = self.server.faults.pop(0) if self.server.faults else None
        content = self.server.files.get(self.path)
        if self.path in self.server.moved:
            self.send_response(302)
            self.send_header('Location', self.server.moved[self.path])
            self.end_headers()
        elif fault == 'chunks':
            self.protocol_version = 'HTTP/1.1'
            self.send_response(200)
            self.send_header('Transfer-Encoding', 'chunked')
            self.end_headers()
            for i in range(0, len(content), 5000):
                part = content[i : i + 5000]
                self.wfile.write(b'%x\r\n' % len(part) + part + b'\r\n')
            self.wfile.write(b'0\r\n\r\n')
            self.close_connection = True
        elif isinstance(fault, tuple):
            self.answer(*fault)
        elif fault == 'reset':
            self.connection.close()
        elif isinstance(fault, int):
            self.answer(fault, b'')
        elif content is None:
            self.answer(404, b'nothing')
        elif fault == 'no length':
            self.wfile.write(b'HTTP/1.0 200 OK\r\n\r\n' + content[:100])
        elif fault == 'cut':
            self.answer(200, content, content[: len(content) // 2])
        elif self.headers.get('Range') and fault != 'no parts':
            first, last = self.headers['Range'].removeprefix('bytes=').split('-')
            self.answer(206, content[int(first) : int(last) + 1])
        else:
            self.answer(200, content)

    do_HEAD = do_GET

    def answer(self, status: int, content: bytes, sent: Any = None) -> None:
        self.send_response(status)
        self.send_header('Content-Length', str(len(content)))
        self.end_headers()
        if self.command == 'GET':
            self.wfile.write(content if sent is None else sent)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(backend, 'FIRST_WAIT_S', 0.001)
    server = Server()
    server.files['/a.jpg'] = CONTENT
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join(30)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    'faults', [[], [503, 503], [429], ['cut'], ['reset', 'cut', 500], ['cut'] * 5]
)
def test_faults_that_pass_are_tried_again(server, faults):
    server.faults = list(faults)
    assert fileio.get(f'{server.url}/a.jpg') == CONTENT
    assert len(server.requests) == len(faults) + 1


def test_a_fault_that_stays_is_not_waited_for(server):
    for status, kind in [(403, StoreRefused), (404, FileNotFoundError), (418, StoreError)]:
        server.faults, server.requests = [status], []
        with pytest.raises(kind, match=rf'{server.url}/a\.jpg\?\*\*\* .*HTTP {status}') as error:
            fileio.get(f'{server.url}/a.jpg?sig=hidden')
        assert 'hidden' not in str(error.value)
        assert len(server.requests) == 1


def test_after_all_attempts_the_store_is_said_to_be_unreachable(server, monkeypatch):
    waits = []
    monkeypatch.setattr(backend.time, 'sleep', waits.append)
    monkeypatch.setattr(backend, 'FIRST_WAIT_S', 0.5)
    server.faults = [503] * 9
    with pytest.raises(StoreUnreachable, match=r'a\.jpg: HTTP 503 \(6 of 6 attempts\)'):
        HTTPFileBackend().get(f'{server.url}/a.jpg')
    assert len(server.requests) == 6
    for wait, expected in zip(waits, [0.5, 1, 2, 4, 8]):
        assert 0.7 * expected < wait < 1.3 * expected
    server.faults = []
    gone = Server()
    gone.server_close()
    with pytest.raises(StoreUnreachable, match='ConnectionRefused'):
        HTTPFileBackend(attempts=2).get(f'{gone.url}/a.jpg')


def test_an_answer_without_a_length_is_not_taken_for_whole(server):
    server.faults = ['no length']
    with pytest.raises(OSError, match='has no Content-Length'):
        fileio.get(f'{server.url}/a.jpg')


def test_parts_of_files(server):
    store = HTTPFileBackend()
    assert store.get_range(f'{server.url}/a.jpg', 100, 50) == CONTENT[100:150]
    with pytest.raises(OSError, match=f'ends before byte {len(CONTENT) + 10}'):
        store.get_range(f'{server.url}/a.jpg', len(CONTENT) - 5, 15)
    server.faults = ['no parts']
    with pytest.raises(OSError, match='does not support range requests'):
        store.get_range(f'{server.url}/a.jpg', 100, 50)


@pytest.mark.slow
def test_a_file_has_a_longest_length(server, bucket, monkeypatch):
    monkeypatch.setenv('MMLINATTN_MAX_DOWNLOAD_GIB', str((len(CONTENT) - 1) / 2**30))
    server.files['/bucket/a.jpg'] = CONTENT
    s3 = S3FileBackend(endpoint_url=server.url)
    for faults in ([], ['chunks']):
        server.faults, server.requests = faults, []
        with pytest.raises(StoreError, match=r'a\.jpg is larger than .*MAX_DOWNLOAD_GIB sets'):
            fileio.get(f'{server.url}/a.jpg')
        assert len(server.requests) == 1
    with pytest.raises(StoreError, match=r's3://bucket/a\.jpg is larger than'):
        s3.get('s3://bucket/a.jpg')
    with pytest.raises(CheckpointError, match='a.jpg cannot be read: .* is larger than'):
        fileio.get_file_backend(bucket).put(CONTENT, f'{bucket}/a.jpg')
        read_checkpoint(f'{bucket}/a.jpg')
    monkeypatch.setenv('MMLINATTN_MAX_DOWNLOAD_GIB', str(len(CONTENT) / 2**30))
    server.faults = ['chunks']
    assert fileio.get(f'{server.url}/a.jpg') == s3.get('s3://bucket/a.jpg') == CONTENT


def test_more_than_the_part_that_is_asked_for_is_refused(server):
    server.faults = [(206, CONTENT)]
    with pytest.raises(StoreError, match=f'sent {len(CONTENT)} bytes, but 50 were requested'):
        HTTPFileBackend().get_range(f'{server.url}/a.jpg', 100, 50)


def test_redirects(server, monkeypatch):
    server.moved['/moved.jpg'] = '/a.jpg'
    assert fileio.get(f'{server.url}/moved.jpg') == CONTENT
    for target in ('ftp://127.0.0.1/a.jpg?sig=hidden', 'file:///etc/passwd'):
        server.moved['/moved.jpg'] = target
        with pytest.raises(OSError) as error:
            fileio.get(f'{server.url}/moved.jpg')
        assert 'is not https' in str(error.value) or 'HTTP 302' in str(error.value)
        assert 'hidden' not in str(error.value)
    with pytest.raises(StoreError, match="'file' is not https"):
        fileio.get('file:///etc/passwd', backend_args=dict(backend='http'))
    # As a server of https would send it.
    asked = Request('https://host/a.jpg?sig=hidden')
    with pytest.raises(web.FetchRefused, match=r'redirect to http://other/b\.jpg leaves') as error:
        web._RedirectHandler().redirect_request(asked, None, 302, '', {}, 'http://other/b.jpg')
    assert 'hidden' not in str(error.value)
    on = web._RedirectHandler().redirect_request(asked, None, 302, '', {}, 'https://other/b.jpg')
    assert on.full_url == 'https://other/b.jpg'
    assert any(isinstance(handler, web._RedirectHandler) for handler in web._opener().handlers)


def test_what_is_there_and_what_cannot_be_listed(server):
    server.files['/with space#1.jpg'.replace(' ', '%20').replace('#', '%23')] = b'x'
    assert path_exists(f'{server.url}/a.jpg') and not path_exists(f'{server.url}/b.jpg')
    assert path_exists(f'{server.url}/folder', folder=True)
    assert fileio.get(f'{server.url}/with space#1.jpg') == b'x'
    with pytest.raises(OSError, match='cannot list files'):
        [*fileio.list_dir_or_file(server.url)]
    with pytest.raises(ValueError, match="no file backend is known as 'ftp'"):
        path_exists('ftp://host/a.jpg')
    with fileio.get_local_path(f'{server.url}/a.jpg') as path:
        assert Path(path).read_bytes() == CONTENT
    assert not Path(path).exists()


@pytest.mark.parametrize(
    'arguments',
    [dict(attempts=0), dict(attempts=True), dict(timeout=0), dict(timeout=-1.0)],
)
def test_arguments_out_of_range(arguments):
    (name,) = arguments
    for store in (HTTPFileBackend, S3FileBackend):
        with pytest.raises(ValueError, match=f'{name} must be positive|{name} must be a positive'):
            store(**arguments)


def test_objects_are_written_listed_and_read(bucket):
    store = fileio.get_file_backend(bucket)
    store.put(CONTENT, f'{bucket}/train/b/1 #?.jpg')
    store.put_text('ü', f'{bucket}/train/a.txt')
    for i in range(3):
        store.put(b'', f'{bucket}/train/c/{i}.png')
    assert fileio.get(f'{bucket}/train/b/1 #?.jpg') == CONTENT
    assert fileio.get_text(f'{bucket}/train/a.txt') == 'ü'
    assert store.get_range(f'{bucket}/train/b/1 #?.jpg', 300, 7) == CONTENT[300:307]

    def listed(**options):
        return sorted(store.list_dir_or_file(f'{bucket}/train/', **options))

    assert listed() == ['a.txt', 'b', 'c']
    assert listed(list_file=False) == ['b', 'c']
    files = ['a.txt', 'b/1 #?.jpg', 'c/0.png', 'c/1.png', 'c/2.png']
    assert listed(list_dir=False, recursive=True) == files
    assert listed(recursive=True) == sorted([*files, 'b', 'c'])
    assert listed(list_dir=False, recursive=True, suffix='.png') == files[2:]
    assert first_files(f'{bucket}/train', 2) == files[:2]
    assert [path_exists(f'{bucket}/{p}') for p in ('train', 'train/a.txt', 'trai')] == [1, 1, 0]
    store.remove(f'{bucket}/train/a.txt')
    with pytest.raises(FileNotFoundError, match=f'{bucket}/train/a.txt does not exist'):
        fileio.get(f'{bucket}/train/a.txt')
    with pytest.raises(FileNotFoundError, match='s3://nowhere/a'):
        fileio.get('s3://nowhere/a')
    with pytest.raises(ValueError, match='names no bucket'):
        fileio.get('s3:///a')


def test_a_list_of_several_pages(bucket, monkeypatch):
    store = fileio.get_file_backend(bucket)
    for i in range(5):
        store.put(b'', f'{bucket}/{i}/a.jpg')
    ask = S3FileBackend._request

    def of_two(self, url, operation, **arguments):
        if operation == 'list_objects_v2':
            arguments['MaxKeys'] = 2
        return ask(self, url, operation, **arguments)

    monkeypatch.setattr(S3FileBackend, '_request', of_two)
    assert [*store.list_dir_or_file(bucket)] == ['0', '1', '2', '3', '4']
    assert len([*store.list_dir_or_file(bucket, list_dir=False, recursive=True)]) == 5


@pytest.mark.parametrize('faults', [[503], ['reset', 500], ['cut'], ['cut', 'cut', 503]])
def test_objects_are_asked_for_again(bucket, server, faults):
    """The same faults from a server that boto3 talks to."""
    server.files['/bucket/a.jpg'] = CONTENT
    server.faults = list(faults)
    assert S3FileBackend(endpoint_url=server.url).get('s3://bucket/a.jpg') == CONTENT
    assert len(server.requests) == len(faults) + 1


def test_objects_that_must_not_be_read(bucket, server):
    server.faults = [403]
    with pytest.raises(PermissionError, match=r'access to s3://bucket/a\.jpg is denied'):
        S3FileBackend(endpoint_url=server.url).get('s3://bucket/a.jpg')
    assert len(server.requests) == 1
    body = b'<Error><Code>ExpiredToken</Code><Message>hidden</Message></Error>'
    server.faults = [(400, body)]
    with pytest.raises(StoreError, match=r'cannot be read \(HTTP 400, ExpiredToken\)$'):
        S3FileBackend(endpoint_url=server.url).get('s3://bucket/a.jpg')


def test_without_credentials(bucket, server, monkeypatch, tmp_path):
    for name in ('AWS_ACCESS_KEY_ID', 'AWS_SECRET_ACCESS_KEY'):
        monkeypatch.delenv(name)
    monkeypatch.setenv('AWS_EC2_METADATA_DISABLED', 'true')
    for name in ('AWS_SHARED_CREDENTIALS_FILE', 'AWS_CONFIG_FILE'):
        monkeypatch.setenv(name, str(tmp_path / 'none'))
    with pytest.raises(PermissionError, match=r's3://bucket/a\.jpg: no credentials .*anonymous'):
        S3FileBackend(timeout=29).get('s3://bucket/a.jpg')  # a client that has not seen any
    server.files['/bucket/a.jpg'] = CONTENT
    asked = dict(backend='s3', anonymous=True, endpoint_url=server.url)
    assert fileio.get('s3://bucket/a.jpg', backend_args=asked) == CONTENT


def test_without_boto3(monkeypatch):
    monkeypatch.setitem(sys.modules, 'boto3.session', None)
    with pytest.raises(ImportError, match=r'needs boto3: pip install boto3'):
        S3FileBackend(timeout=28).get('s3://bucket/a.jpg')


class _File(Dataset):
    """A data set whose samples are the same file."""

    def __init__(self, store, url):
        self.store, self.url = store, url

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return self.store.get(self.url)


def _read_in_workers(store, url, environment, pipe):
    os.environ.update(environment)
    store.put(CONTENT, url)  # a connection that a forked process must not use
    context = multiprocessing.get_context('fork')
    loader = DataLoader(
        _File(store, url), None, num_workers=2, timeout=60, multiprocessing_context=context
    )
    pipe.send([*loader])


def test_stores_are_sent_to_workers(bucket):
    """Those of a data loader are forked, here from a process without threads."""
    store = pickle.loads(pickle.dumps(fileio.get_file_backend(bucket)))
    context = multiprocessing.get_context('forkserver')
    pipe, other_end = context.Pipe()
    arguments = (store, f'{bucket}/a.jpg', dict(os.environ), other_end)
    process = context.Process(target=_read_in_workers, args=arguments)
    process.start()
    other_end.close()
    assert pipe.poll(120) and pipe.recv() == [CONTENT] * 2
    process.join(30)
    assert process.exitcode == 0


@pytest.mark.parametrize(
    'config, place',
    [
        (dict(a=[dict(backend_args=dict(aws_secret_access_key='x'))]), 'a[0].backend_args.aws_sec'),
        (dict(backend_args=dict(backend='petrel', access_key='x')), 'backend_args.access_key'),
        (dict(file_client_args=dict(auth=dict(token='x'))), 'file_client_args.auth.token'),
        (dict(data_root='https://me:pw@host/data'), 'data_root'),
        (dict(ann_file='https://h/a.json?X-Amz-Signature=abc'), 'ann_file'),
        (dict(any=['text', f'x{SECRET}']), 'any[1]'),
        (dict(any=dict(thing=KEY_ID)), 'any.thing'),
    ],
)
def test_secrets_in_configs(config, place, monkeypatch):
    monkeypatch.setenv('AWS_SECRET_ACCESS_KEY', SECRET)
    monkeypatch.setenv('AWS_ACCESS_KEY_ID', KEY_ID)
    with pytest.raises(ValueError) as error:
        check_no_secrets(config)
    assert str(error.value).startswith(place)
    assert not any(text in str(error.value) for text in (SECRET, KEY_ID, 'pw', 'abc'))


def test_no_secret_in_sight(monkeypatch):
    monkeypatch.setenv('AWS_SECRET_ACCESS_KEY', SECRET)
    backend_args = dict(backend='s3', anonymous=True, endpoint_url='https://host:9000')
    model = dict(key='x', with_cls_token=True, num_tokens=3)
    check_no_secrets(
        dict(model=model, dataset=dict(backend_args=backend_args), root='s3://b/a?b#c')
    )


def test_messages_and_logs_have_no_secrets(bucket, server, capsys, monkeypatch):
    store = S3FileBackend(endpoint_url=server.url)
    monkeypatch.setattr(MMLogger, '_instance_dict', type(MMLogger._instance_dict)())
    MMLogger.get_instance(bucket, log_level='DEBUG')  # from now on the one that is written to
    texts = []
    for faults in ([503] * 6, [403], ['reset'] * 6, ['cut'] * 6):
        server.faults, server.files['/bucket/a.jpg'] = faults, CONTENT
        with pytest.raises(OSError) as error:
            store.get('s3://bucket/a.jpg')
        texts += traceback.format_exception(None, error.value, error.value.__traceback__)
    seen = ''.join([*texts, *capsys.readouterr()])
    assert 's3://bucket/a.jpg' in seen and 'again in' in seen
    assert KEY_ID not in seen and SECRET not in seen
