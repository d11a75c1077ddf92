"""Requests to the page that name an address or another file, without gradio."""

import asyncio
import json
import socket

import pytest

from mmlinattn.app.guard import MAX_BODY, Refused, RequestGuard, checked_payload
from mmlinattn.app.guard import no_outgoing_connections as closed

META = {'_type': 'gradio.FileData'}
ADDRESS = 'http://10.0.0.1/a.png'
JOIN = '/gradio_api/queue/join'


@pytest.fixture
def uploads(tmp_path):
    (tmp_path / 'uploads' / 'sha').mkdir(parents=True)
    (tmp_path / 'uploads' / 'sha' / 'a b.png').touch()
    (tmp_path / 'secret').touch()
    (tmp_path / 'uploads-of-others').touch()
    return tmp_path / 'uploads'


def test_an_uploaded_file_passes_without_its_address(uploads):
    path = str(uploads / 'sha' / 'a b.png')
    quoted = f'http://127.0.0.1:7860/gradio_api/file={path.replace(" ", "%20")}'
    for url in (quoted, f'http://127.0.0.1:7860/gradio_api/file={path}', None):
        sent = dict(data=['x, https://host/x.pth', dict(path=path, url=url, meta=META), 0.3, None])
        wanted = dict(data=['x, https://host/x.pth', dict(path=path, meta=META), 0.3, None])
        assert checked_payload(sent, uploads) == wanted


@pytest.mark.parametrize(
    'file',
    [
        dict(path=ADDRESS),
        dict(path='HTTPS://10.0.0.1/a.png'),
        dict(path='file:///etc/passwd'),
        dict(path='/etc/passwd'),
        dict(path='UPLOADS/../secret'),
        dict(path='UPLOADS-of-others'),
        dict(path='UPLOADS'),
        dict(path='UPLOADS/link'),
        dict(path='../secret'),
        dict(path=''),
        dict(path='\0'),
        dict(path=None),
        dict(path=[ADDRESS]),
        dict(url=ADDRESS),
        dict(path='UPLOADS/sha/a b.png', url=ADDRESS),
        dict(path='UPLOADS/sha/a b.png', url='data:image/png;base64,AAAA'),
        dict(path='UPLOADS/sha/a b.png', url={'path': ADDRESS}),
        dict(path='UPLOADS/sha/a b.png', orig_name=ADDRESS),
        dict(path='UPLOADS/sha/a b.png', meta=dict(META, more=dict(path=ADDRESS))),
    ],
    ids=str,
)
@pytest.mark.parametrize('where', ['data', 'nested', 'event_data'])
def test_other_files_are_refused(uploads, file, where):
    (uploads / 'link').symlink_to(uploads.parent / 'secret')
    if isinstance(file.get('path'), str):
        file = dict(file, path=file['path'].replace('UPLOADS', str(uploads)))
    for meta in (dict(meta=META), {}):
        sent = dict(file, **{k: v for k, v in meta.items() if k not in file})
        body = dict(
            data=dict(data=['m', sent, 0.3]),
            nested=dict(data=[[[dict(a=[sent])]]]),
            event_data=dict(data=[], event_data=dict(value=sent)),
        )[where]
        with pytest.raises(ValueError):
            checked_payload(body, uploads)


def test_a_string_that_is_an_address(uploads):
    for text in (ADDRESS, f' {ADDRESS}', 'ftp://10.0.0.1/a'):
        with pytest.raises(Refused, match='is an address: the page reads uploaded images alone'):
            checked_payload(dict(data=[text]), uploads)


def ask(uploads, *parts, path=JOIN, method='POST'):
    """Status of the guard's answer, and what the application behind it got."""
    messages = [
        dict(type='http.request', body=part, more_body=i + 1 < len(parts))
        for i, part in enumerate(parts)
    ]
    got, sent = [], []

    async def receive():
        return messages.pop(0) if messages else dict(type='http.disconnect')

    async def send(message):
        sent.append(message)

    async def application(scope, receive, send):
        while (message := await receive())['type'] == 'http.request':
            got.append(message['body'])
        await send(dict(type='http.response.start', status=200, headers=[]))

    scope = dict(type='http', method=method, path=path, headers=[])
    asyncio.run(RequestGuard(application, uploads)(scope, receive, send))
    return sent[0]['status'], b''.join(got), sent[-1].get('body', b'')


def test_the_application_gets_what_was_checked(uploads):
    path = str(uploads / 'sha' / 'a b.png')
    body = json.dumps(dict(data=[dict(path=path, url=None, meta=META)])).encode()
    status, got, _ = ask(uploads, body[:10], body[10:])
    assert status == 200 and json.loads(got) == dict(data=[dict(path=path, meta=META)])
    assert ask(uploads, b'') == (200, b'', b'')
    # A key that is there twice: another parser may take the other one.
    twice = f'{{"data": ["{ADDRESS}"], "data": [1]}}'.encode()
    assert ask(uploads, twice)[:2] == (200, b'{"data": [1]}')


@pytest.mark.parametrize(
    'body, reason',
    [
        (json.dumps(dict(data=[dict(path=ADDRESS)])).encode(), 'is not an uploaded file'),
        (json.dumps(dict(data=[dict(path=ADDRESS)])).encode('utf-16'), 'is not an uploaded file'),
        (f'data={ADDRESS}'.encode(), 'is not JSON'),
        (b'--x\r\nContent-Disposition: form-data; name="data"\r\n\r\n', 'is not JSON'),
        (b'[' * 100000, 'is not JSON'),
        (b'"' + b'x' * MAX_BODY + b'"', f'more than {MAX_BODY} bytes'),
    ],
    ids=['file', 'utf-16', 'form', 'multipart', 'deep', 'large'],
)
@pytest.mark.parametrize('path', [JOIN, '/gradio_api/run/upload', '/gradio_api/component_server'])
def test_refused_before_the_application(uploads, body, reason, path):
    status, got, answer = ask(uploads, body, path=path)
    assert status == 403 and got == b'' and reason in json.loads(answer)['detail']


@pytest.mark.parametrize('road', ['file=', 'file/', 'proxy='])
@pytest.mark.parametrize('method', ['GET', 'HEAD'])
def test_addresses_in_the_path(uploads, road, method):
    status, _, answer = ask(uploads, path=f'/gradio_api/{road}{ADDRESS}', method=method)
    assert status == 403 and 'has an address' in json.loads(answer)['detail']
    assert ask(uploads, path=f'/gradio_api/file={uploads}/sha/a b.png', method=method)[0] == 200


def test_an_upload_is_handed_on_as_it_is(uploads):
    assert ask(uploads, b'--x', b'y', path='/gradio_api/upload')[:2] == (200, b'--xy')


def test_no_connection_goes_out():
    with socket.create_server(('127.0.0.1', 0)) as server:
        server.settimeout(5)
        address = server.getsockname()
        client = socket.socket()
        with closed(), client, socket.socket(type=socket.SOCK_DGRAM) as datagrams:
            with pytest.raises(OSError, match='the page connects to no server'):
                client.connect(address)
            with pytest.raises(OSError, match='the page connects to no server'):
                datagrams.sendto(b'x', address)
            with pytest.raises(OSError, match='the page connects to no server'):
                socket.getaddrinfo('localhost', 80)
            left, right = socket.socketpair()
            left.sendall(b'x')
            assert right.recv(1) == b'x'
            left.close()
            right.close()
        with socket.create_connection(address, 5):
            server.accept()[0].close()  # nobody was there before this client
