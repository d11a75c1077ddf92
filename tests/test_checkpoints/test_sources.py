"""Every road by which a checkpoint comes in: the same rules on each."""

import hashlib
import http.server
import io
import os
import pickle
import threading
import time
from functools import partial
from pathlib import Path

import mmengine
import numpy as np
import pytest
import torch
from mmengine.runner import CheckpointLoader
from mmengine.runner import load_checkpoint as mmengine_load
from torch import nn

from mmlinattn.checkpoints import (
    CheckpointCache,
    CheckpointError,
    download,
    load_checkpoint,
    read_checkpoint,
    replace_mmengine_readers,
)
from mmlinattn.checkpoints.checkpoint_uri import mmengine_zoos
from mmlinattn.utils import http as web

WEIGHT = torch.arange(6.0).reshape(2, 3)


class Evil:
    """Unpickling it makes a folder."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A web server of a folder: server.folder, server.url; downloads go to a cache of the test."""
    monkeypatch.setenv('TORCH_HOME', str(tmp_path / 'cache'))
    monkeypatch.setenv('MMENGINE_HOME', str(tmp_path / 'mmengine'))
    monkeypatch.setenv('MMLINATTN_ALLOW_HTTP', '1')
    servers = []

    def start(name='www', handler=http.server.SimpleHTTPRequestHandler):
        folder = tmp_path / name
        folder.mkdir()
        quiet = type('Quiet', (handler,), {'log_message': lambda *_: None})
        server = http.server.ThreadingHTTPServer(
            ('127.0.0.1', 0), partial(quiet, directory=str(folder))
        )
        threading.Thread(target=server.serve_forever, daemon=True).start()
        server.folder, server.url = folder, f'http://127.0.0.1:{server.server_port}'
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def save(path: Path, **content) -> Path:
    torch.save(content or dict(state_dict=dict(weight=WEIGHT), meta=dict(epoch=1)), path)
    return path


def test_local_file_and_file_address(tmp_path):
    path = save(tmp_path / 'a b.pth')
    for source in (path, str(path), path.as_uri()):
        assert torch.equal(read_checkpoint(source)['state_dict']['weight'], WEIGHT)
    with pytest.raises(FileNotFoundError, match=r'missing\.pth'):
        read_checkpoint('file:///missing.pth')


def test_web_address_is_fetched_once(server):
    www = server()
    path = save(www.folder / 'a.pth')
    assert torch.equal(read_checkpoint(f'{www.url}/a.pth')['state_dict']['weight'], WEIGHT)
    path.unlink()
    assert torch.equal(read_checkpoint(f'{www.url}/a.pth')['state_dict']['weight'], WEIGHT)


def test_two_servers_with_files_of_one_name(server):
    first, second = server('first'), server('second')
    save(first.folder / 'a.pth', weight=WEIGHT)
    save(second.folder / 'a.pth', weight=WEIGHT + 1)
    assert torch.equal(read_checkpoint(f'{first.url}/a.pth')['state_dict']['weight'], WEIGHT)
    assert torch.equal(read_checkpoint(f'{second.url}/a.pth')['state_dict']['weight'], WEIGHT + 1)


def test_http_needs_a_word(server, monkeypatch):
    www = server()
    save(www.folder / 'a.pth')
    monkeypatch.delenv('MMLINATTN_ALLOW_HTTP')
    with pytest.raises(CheckpointError, match='http is refused.*MMLINATTN_ALLOW_HTTP=1'):
        read_checkpoint(f'{www.url}/a.pth')


def test_redirects_keep_the_rules(server, monkeypatch):
    class Away(http.server.SimpleHTTPRequestHandler):
        def do_GET(self):
            self.send_response(302)
            self.send_header('Location', 'ftp://127.0.0.1/a.pth')
            self.end_headers()

    with pytest.raises(CheckpointError, match="'ftp' is not https"):
        read_checkpoint(f'{server(handler=Away).url}/a.pth')


def test_sha256_behind_the_address_and_in_the_name(server):
    www = server()
    digest = hashlib.sha256(save(www.folder / 'a.pth').read_bytes()).hexdigest()
    for name in (f'net-{digest[:8]}.pth', 'net-00000000.pth'):
        (www.folder / name).write_bytes((www.folder / 'a.pth').read_bytes())
    read_checkpoint(f'{www.url}/a.pth#sha256={digest}')
    read_checkpoint(f'{www.url}/net-{digest[:8]}.pth')
    with pytest.raises(CheckpointError, match=f'begins with {digest[:16]} and not with 00000000'):
        read_checkpoint(f'{www.url}/net-00000000.pth')
    read_checkpoint(f'{www.url}/net-00000000.pth#sha256={digest[:16]}')
    wrong = '1' * 64
    with pytest.raises(CheckpointError, match=f'not with {wrong}'):
        read_checkpoint(f'{www.url}/a.pth#sha256={wrong}')  # of the copy in the cache
    with pytest.raises(CheckpointError, match='after #'):
        read_checkpoint(f'{www.url}/a.pth#md5=12345678')


@pytest.mark.parametrize('announced', [True, False])
def test_size_limit(server, monkeypatch, announced, tmp_path):
    class Long(http.server.SimpleHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            if announced:
                self.send_header('Content-Length', str(10**6))
            self.end_headers()
            for _ in range(10):
                self.wfile.write(bytes(10**5))

    monkeypatch.setenv('MMLINATTN_MAX_DOWNLOAD_GIB', '0.0001')
    with pytest.raises(CheckpointError, match='MMLINATTN_MAX_DOWNLOAD_GIB'):
        read_checkpoint(f'{server(handler=Long).url}/a.pth')
    assert not [*(tmp_path / 'cache').rglob('*a.pth*')]


def test_cut_transfer_missing_file_and_no_server(server, tmp_path):
    class Cut(http.server.SimpleHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header('Content-Length', '100')
            self.end_headers()
            self.wfile.write(bytes(50))

    with pytest.raises(CheckpointError, match='50 of 100|IncompleteRead|50 bytes'):
        read_checkpoint(f'{server(handler=Cut).url}/a.pth')
    www = server('empty')
    with pytest.raises(CheckpointError, match=r'cannot be downloaded.*404'):
        read_checkpoint(f'{www.url}/none.pth')
    with pytest.raises(CheckpointError, match='cannot be downloaded'):
        read_checkpoint('http://127.0.0.1:9/none.pth')
    assert not [*(tmp_path / 'cache').rglob('*.pth*')]


@pytest.fixture
def zoos(monkeypatch):
    """The zoos of MMEngine, each with one model 'net' at an address of the test."""

    def point(address):
        for zoo in ('torchvision_models', 'external_models', 'mmcls_models'):
            monkeypatch.setattr(mmengine_zoos, f'get_{zoo}', lambda: dict(net=address))
        monkeypatch.setattr(mmengine_zoos, 'get_deprecated_model_names', lambda: dict(old='net'))

    return point


ZOOS = ['torchvision://net', 'modelzoo://net', 'open-mmlab://net', 'openmmlab://old', 'mmcls://net']


@pytest.mark.parametrize('name', ZOOS)
def test_model_zoos(server, zoos, name):
    www = server()
    zoos(f'{www.url}/a.pth')
    key = 'backbone.weight' if name.startswith('mmcls') else 'weight'
    save(www.folder / 'a.pth', **{key: WEIGHT})
    assert list(read_checkpoint(name)['state_dict']) == ['weight']
    with pytest.raises(CheckpointError, match='no such model'):
        read_checkpoint(name.partition('://')[0] + '://nothing')


def test_unknown_scheme():
    with pytest.raises(CheckpointError, match='nowhere://a.pth cannot be read'):
        read_checkpoint('nowhere://a.pth')


@pytest.fixture
def serving():
    """MMEngine's loaders while a store serves them; as before afterwards."""
    before = CheckpointLoader._schemes
    handlers = dict(mmengine.fileio.handlers.registry_utils.file_handlers)
    CheckpointLoader._schemes = dict(before)
    store = CheckpointCache()
    replace_mmengine_readers(store.read)
    yield store
    CheckpointLoader._schemes = before
    mmengine.fileio.handlers.registry_utils.file_handlers.update(handlers)


@pytest.mark.parametrize('name', ['a.pth', 'file', 'http', 's3://bucket/a.pth', *ZOOS])
def test_code_is_refused_on_every_road_through_mmengine(
    server, zoos, serving, name, tmp_path, monkeypatch
):
    www, mark = server(), tmp_path / 'ran'
    path = save(www.folder / 'a.pth', state_dict=dict(weight=WEIGHT), evil=Evil(mark))
    zoos(f'{www.url}/a.pth')
    monkeypatch.setattr(mmengine.fileio, 'get', lambda uri: path.read_bytes())
    name = {'a.pth': str(path), 'file': path.as_uri(), 'http': f'{www.url}/a.pth'}.get(name, name)
    with pytest.raises(CheckpointError, match='refused.*mkdir'):
        mmengine_load(nn.Linear(3, 2, bias=False), name)
    assert not mark.exists()


def test_what_is_loaded_is_what_was_read(tmp_path, serving):
    path, mark = save(tmp_path / 'a.pth'), tmp_path / 'ran'
    assert serving.read(path)['meta'] == dict(epoch=1)
    save(path, state_dict=dict(weight=WEIGHT + 1), evil=Evil(mark))
    model = nn.Linear(3, 2, bias=False)
    mmengine_load(model, str(path), strict=True)
    assert torch.equal(model.weight, WEIGHT)
    serving.release()
    with pytest.raises(CheckpointError, match='refused'):
        mmengine_load(model, str(path))
    for value in (2.0, 3.0):  # nothing is kept any more
        save(path, weight=torch.full((2, 3), value))
        mmengine_load(model, str(path))
        assert (model.weight == value).all()
    assert not mark.exists()


def test_python_in_the_meta_information_is_left_out(tmp_path, serving):
    """When resuming MMEngine runs ``meta['config']`` as Python."""
    meta = dict(epoch=1, iter=2, config='import os')
    path = save(tmp_path / 'a.pth', state_dict=dict(weight=WEIGHT), meta=meta)
    assert mmengine_load(nn.Linear(3, 2), str(path))['meta'] == dict(epoch=1, iter=2)


def test_pickled_annotations_and_proposals(tmp_path, serving):
    plain = dict(bboxes=np.arange(4.0).reshape(1, 4), names=['a'], score=np.float32(0.5))
    mmengine.dump(plain, tmp_path / 'a.pkl')
    read = mmengine.load(tmp_path / 'a.pkl')
    np.testing.assert_array_equal(read['bboxes'], plain['bboxes'])
    assert read['names'] == ['a'] and read['score'] == 0.5
    (tmp_path / 'evil.pkl').write_bytes(pickle.dumps([Evil(tmp_path / 'ran')]))
    with pytest.raises(CheckpointError, match='a pickle file is refused.*mkdir'):
        mmengine.load(tmp_path / 'evil.pkl')
    with pytest.raises(CheckpointError, match='refused'):
        mmengine.load(io.BytesIO((tmp_path / 'evil.pkl').read_bytes()), file_format='pkl')
    (tmp_path / 'a.yml').write_text(f'!!python/object/apply:os.mkdir ["{tmp_path}/ran"]')
    with pytest.raises(CheckpointError, match='refused'):
        mmengine.load(tmp_path / 'a.yml')
    (tmp_path / 'a.yml').write_text('a: [1, 2]')
    assert mmengine.load(tmp_path / 'a.yml') == dict(a=[1, 2])
    assert not (tmp_path / 'ran').exists()


def test_load_into_a_model(tmp_path):
    model = nn.Linear(3, 2, bias=False)
    assert load_checkpoint(model, save(tmp_path / 'a.pth')) == dict(epoch=1)
    assert torch.equal(model.weight, WEIGHT)
    with pytest.raises(CheckpointError, match='(?s)not of this whole model.*bias'):
        load_checkpoint(nn.Linear(3, 2), tmp_path / 'a.pth')


def test_changed_bytes_are_noticed(tmp_path):
    path = save(tmp_path / 'a.pth')
    data = bytearray(path.read_bytes())
    at = data.index(WEIGHT.numpy().tobytes())
    data[at + 5] ^= 1
    path.write_bytes(data)
    assert torch.load(path, weights_only=True)['meta'] == dict(epoch=1)  # torch does not
    with pytest.raises(CheckpointError, match='damaged'):
        read_checkpoint(path)


class Drip(http.server.BaseHTTPRequestHandler):
    """One byte each 20 ms, 600 of them: of the body, or of a header that does not end."""

    of_header = False

    def __init__(self, *args, directory=None):
        super().__init__(*args)

    def do_GET(self):
        self.wfile.write(b'HTTP/1.0 200 OK\r\n')
        self.wfile.write(b'X: ' if self.of_header else b'Content-Length: 1000000\r\n\r\n')
        for _ in range(600):
            self.wfile.write(b'x')
            time.sleep(0.02)


@pytest.mark.parametrize('of_header', [False, True])
def test_a_server_that_drips_is_left(server, monkeypatch, of_header, tmp_path):
    """The timeout of the socket starts anew with each byte."""
    monkeypatch.setattr(download, 'TIMEOUT_S', 1.0)
    handler = type('Handler', (Drip,), dict(of_header=of_header))
    with pytest.raises(CheckpointError, match='bytes in 1 s, less than 1024 a second'):
        read_checkpoint(f'{server(handler=handler).url}/a.pth')
    assert not [*(tmp_path / 'cache').rglob('*a.pth*')]


class Line:
    """Stands in for a socket: what comes, and after how many seconds of a clock of the test."""

    def __init__(self, monkeypatch, *comes):
        self.comes, self.now = [*comes], 0.0
        monkeypatch.setattr(web.time, 'monotonic', lambda: self.now)

    def readinto(self, buffer):
        number, seconds = self.comes.pop(0) if self.comes else (0, 0)
        self.now += seconds
        return number


def pull(line):
    paced = web._MinRateStream(line, timeout=30)
    while paced.readinto(None):
        line.now += 1000  # what is done with the bytes does not count


@pytest.mark.parametrize(
    'comes',
    [
        [(1, 29), (1, 29)],  # a slow answer that then ends
        [(100, 4), (40_000, 20), (40_000, 20)] * 3,
        [(40_000, 29)] * 5,
        [(1, 4)] * 8,  # a file of 8 bytes
    ],
)
def test_a_line_that_is_fast_enough(monkeypatch, comes):
    line = Line(monkeypatch, *comes)
    pull(line)
    assert not line.comes


@pytest.mark.parametrize('comes', [[(1, 4)] * 100, [(40_000, 29)] * 3 + [(1_000, 2)] * 100])
def test_a_line_that_is_too_slow(monkeypatch, comes):
    line = Line(monkeypatch, *comes)
    with pytest.raises(TimeoutError, match=r'bytes in 3\d s, less than 1024 a second'):
        pull(line)
    assert len(line.comes) > 70
