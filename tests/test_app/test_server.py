"""The server of the page, asked by hand: what it refuses, where it connects, what it leaves."""

import io
import json
import os
import re
import signal
import socketserver
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import weakref
from concurrent.futures import CancelledError, Future

import pytest
import torch
from PIL import Image

from mmlinattn.app import Workbench
from mmlinattn.app.page import build_page, run_until_closed

pytest.importorskip('gradio', reason="gradio is not installed: pip install 'gradio>=6'")

ADDRESS = re.compile(r'(http://127\.0\.0\.1:\d+)/? \(Ctrl-C closes it\)')
META = {'_type': 'gradio.FileData'}
LIMIT = 2  # megapixels


class Listener(socketserver.ThreadingTCPServer):
    """A server that notes the first line of whatever connects to it."""

    daemon_threads = True

    def __init__(self):
        super().__init__(('127.0.0.1', 0), self.note)
        self.seen = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def note(self, connection, *_):
        with connection:
            self.seen.append(connection.recv(1000).split(b'\r\n')[0])
            connection.sendall(b'HTTP/1.1 502 no\r\nContent-Length: 0\r\n\r\n')

    @property
    def address(self):
        return f'http://127.0.0.1:{self.server_address[1]}'


class Server:
    """The command, serving a segmentor in a process whose proxy is a :class:`Listener`."""

    def __init__(self, root, files, folder, proxy):
        self.log = folder / 'log'
        self.uploads = folder / 'uploads'
        self.uploads.mkdir()
        names = ('http_proxy', 'https_proxy', 'all_proxy', 'HTTP_PROXY', 'HTTPS_PROXY', 'ALL_PROXY')
        env = {k: v for k, v in os.environ.items() if k.lower() != 'no_proxy'}
        env.update(dict.fromkeys(names, proxy), TMPDIR=str(self.uploads))
        env['PYTHONPATH'] = os.pathsep.join([str(root), os.environ.get('PYTHONPATH', '')])
        command = [sys.executable, '-m', 'mmlinattn', 'app', *files]
        with self.log.open('w') as file:
            self.process = subprocess.Popen(
                [*command, '--max-megapixels', str(LIMIT), '--images', str(folder)],
                cwd=root, env=env, stdout=file, stderr=subprocess.STDOUT,
            )  # fmt: skip
        deadline = time.monotonic() + 120
        while not (found := ADDRESS.search(self.log.read_text())):
            assert self.process.poll() is None and time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.2)
        self.address = found[1]
        self.open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
        steps = json.loads(self.ask('/config')[1])['dependencies']
        self.predict = next(step['id'] for step in steps if len(step['inputs']) == 3)
        self.model = 'semantic-fpn_ravlt-nano_shapes'

    def ask(self, path, data=None, kind='application/json'):
        """Status and content."""
        request = urllib.request.Request(self.address + path, data, {'Content-Type': kind})
        try:
            with self.open(request, timeout=60) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def post(self, path, **body):
        return self.ask(path, json.dumps(body).encode())

    def upload(self, content, name='a.png'):
        head = f'--x\r\nContent-Disposition: form-data; name="files"; filename="{name}"\r\n\r\n'
        body = head.encode() + content + b'\r\n--x--\r\n'
        status, answer = self.ask('/gradio_api/upload', body, 'multipart/form-data; boundary=x')
        assert status == 200, answer
        return json.loads(answer)[0]

    def predicted(self, **image):
        """The message that ends a prediction of an image, as the page asks for it."""
        session = f'session{time.monotonic_ns()}'
        data = [self.model, dict(image, orig_name='a.png', meta=META), 0.3]
        body = dict(data=data, fn_index=self.predict, session_hash=session)
        status, answer = self.post('/gradio_api/queue/join', **body)
        assert status == 200, answer
        events = f'{self.address}/gradio_api/queue/data?session_hash={session}'
        with self.open(events, timeout=120) as stream:
            for line in stream:
                if b'"process_completed"' in line:
                    return json.loads(line.partition(b':')[2])
        raise AssertionError('the prediction did not end')


def png(width, height):
    file = io.BytesIO()
    Image.new('1', (width, height)).save(file, 'png')
    return file.getvalue()


@pytest.fixture(scope='module')
def proxy():
    with Listener() as listener:
        yield listener
        listener.shutdown()


@pytest.fixture(scope='module')
def server(root, files, tmp_path_factory, proxy):
    folder = tmp_path_factory.mktemp('server')
    (folder / 'example.png').write_bytes(png(64, 64))
    started = Server(root, files('seg'), folder, proxy.address)
    try:
        yield started
        started.process.send_signal(signal.SIGTERM)
        assert started.process.wait(60) == 143
        assert not list(started.uploads.iterdir())
    finally:
        started.process.kill()
        started.process.wait()


def test_an_upload_is_predicted(server):
    path = server.upload(png(64, 48))
    for url in (None, f'{server.address}/gradio_api/file={path}'):
        message = server.predicted(path=path, url=url)
        assert message['success'] and '64 x 48 pixels' in message['output']['data'][1]


def test_nothing_is_fetched(server, proxy):
    """No road of an address into the server makes it ask the proxy, or the address itself."""
    uploaded = server.upload(png(64, 64))
    with Listener() as target:
        for address in (f'{target.address}/a.png', 'https://example.com/a.png'):
            bad = [
                dict(path=address, meta=META),
                dict(path=address),
                dict(url=address, meta=META),
                dict(path=uploaded, url=address, meta=META),
                [[dict(a=dict(path=address, meta=META))]],
                address,
            ]
            bodies = [[server.model, image, 0.3] for image in bad] + [
                [dict(path=address, meta=META), None, 0.3],
                [server.model, None, dict(path=address, meta=META)],
            ]
            for data in bodies:
                for road in ('queue/join', 'run/predict', 'api/predict', 'call/predict'):
                    body = dict(data=data, fn_index=server.predict, session_hash='s')
                    status, answer = server.post(f'/gradio_api/{road}', **body)
                    assert status == 403 and b'detail' in answer, (road, data, answer)
            named = dict(name=server.model, image=bad[0], min_score=0.3)
            assert server.post('/gradio_api/call/v2/predict', **named)[0] == 403
            event = dict(data=[server.model, None, 0.3], event_data=bad[0], session_hash='s')
            assert server.post('/gradio_api/queue/join', fn_index=0, **event)[0] == 403
            for road in ('file=', 'file/', 'proxy='):
                assert server.ask(f'/gradio_api/{road}{address}')[0] == 403
            server.ask(f'/?deep_link={address}')
        target.shutdown()
        assert target.seen == [] and proxy.seen == []


def test_no_other_file_is_read(server, root):
    uploaded = server.upload(png(64, 64))
    secret = '/etc/passwd'
    up = '../' * 12
    for path in (secret, f'{uploaded}/{up}etc/passwd', f'{up}etc/passwd', str(root / 'README.md')):
        data = [server.model, dict(path=path, meta=META), 0.3]
        body = dict(data=data, fn_index=server.predict, session_hash='s')
        assert server.post('/gradio_api/queue/join', **body)[0] == 403
    for path in (
        f'/gradio_api/file={secret}',
        f'/gradio_api/file={uploaded}/{up}etc/passwd',
        f'/gradio_api/file/{secret}',
        '/gradio_api/file=%2Fetc%2Fpasswd',
        '/gradio_api/file=//etc/passwd',
        '/gradio_api/file=/proc/self/environ',
        f'/gradio_api/file={root}/README.md',
        f'/static/{up}etc/passwd',
        f'/assets/{up}etc/passwd',
        '/static/..%2f..%2f..%2f..%2f..%2f..%2f..%2f..%2f..%2fetc%2fpasswd',
        f'/svelte/{up}etc/passwd',
        f'/gradio_api/custom_component/x/client/{up}etc/passwd',
    ):
        status, content = server.ask(path)
        assert status >= 400 and b'root:' not in content and b'MMLinAttn' not in content, path
    answer = server.upload(b'text', '../../../tmp/out.png')
    assert answer.startswith(str(server.uploads))


def test_an_image_with_too_many_pixels(server):
    """Told before decoding: this one is of 169 megapixels, half a gigabyte in RGB."""
    path = server.upload(png(13000, 13000))
    before = peak(server.process.pid)
    message = server.predicted(path=path)
    said = 'image a.png has 13000 x 13000 = 169.0 megapixels, the limit is 2: use a smaller image'
    assert not message['success'] and said in message['output']['error']
    assert peak(server.process.pid) - before < 100
    message = server.predicted(path=server.upload(b'no picture'))
    assert not message['success'] and 'a.png cannot be read' in message['output']['error']


def peak(pid):
    """Most memory that a process has had, in megabytes."""
    with open(f'/proc/{pid}/status') as file:
        return int(re.search(r'VmHWM:\s+(\d+) kB', file.read())[1]) / 1000


def test_direct_requests_do_not_go_past_the_queue(server):
    """Else each of many at once would hold an image."""
    data = [server.model, dict(path=server.upload(png(64, 64)), meta=META), 0.3]
    status, answer = server.post('/gradio_api/run/predict', data=data, fn_index=server.predict)
    assert status == 404 and b'join the queue' in answer


def test_many_at_once(server):
    path, done = server.upload(png(64, 64)), []
    threads = [
        threading.Thread(target=lambda: done.append(server.predicted(path=path)['success']))
        for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert done == [True] * 20


def test_an_error_does_not_keep_what_the_model_computed(tmp_path):
    """gradio holds errors for a while, and they would hold the tensors of a large image."""
    (tmp_path / 'a.png').write_bytes(png(8, 8))

    class Failing:
        model = torch.nn.Linear(1, 1)

        def predict(self, image, min_score):
            computed = torch.ones(1)
            self.kept = weakref.ref(computed)
            raise RuntimeError('no memory')

    failing = Failing()
    bench = Future()
    bench.set_result(Workbench(dict(a=failing)))
    page = build_page(['a'], bench)
    predict = next(step.fn for step in page.fns.values() if len(step.inputs) == 3)
    with pytest.raises(Exception, match='no memory') as error:
        predict('a', dict(path=str(tmp_path / 'a.png')), 0.3)
    assert error.value.__cause__ is not None and failing.kept() is None


@pytest.mark.parametrize('error', [ValueError, KeyboardInterrupt, SystemExit])
def test_models_that_cannot_be_loaded_close_the_page(error):
    """Requests that wait for them end."""
    closed, waiting = [], []

    class Page:
        close = staticmethod(lambda verbose: closed.append(verbose))

    def load():
        raise error('no model')

    bench = Future()
    thread = threading.Thread(target=wait_for, args=(bench, waiting), daemon=True)
    thread.start()
    if error is KeyboardInterrupt:
        run_until_closed(Page(), bench, load)
    else:
        with pytest.raises(error, match='no model'):
            run_until_closed(Page(), bench, load)
    thread.join(10)
    assert closed == [False] and waiting == [CancelledError]


def wait_for(bench, ended):
    try:
        bench.result()
    except BaseException as error:
        ended.append(type(error))
