"""Protection of the page's server against requests for other files and outgoing connections."""

import json
import os
import re
import socket
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterator
from urllib.parse import unquote

MAX_BODY = 2**20  # bytes of a request that is no upload; the page sends a few hundred
ADDRESS = re.compile(r'\s*[a-z][a-z0-9+.-]*://', re.IGNORECASE)
UPLOAD = '/gradio_api/upload'
INTERNET = (socket.AF_INET, socket.AF_INET6)
OUTGOING = ('socket.connect', 'socket.sendto', 'socket.sendmsg')
LOOKUPS = ('socket.getaddrinfo', 'socket.gethostbyname', 'socket.gethostbyaddr')


class Refused(ValueError):
    """Request that contains a URL, or a file that was not uploaded."""


def checked_payload(value: Any, uploads: Path) -> Any:
    """Return the JSON value of a request without the URLs of its files.

    The server reads a file by its ``path``. A browser also sends the page's own URL of that file as
    ``url``, which is removed, so that nothing can read from it.

    Args:
        value: parsed JSON.
        uploads: folder of the uploaded files.

    Raises:
        Refused: a file is outside of ``uploads``, a ``url`` does not belong to the ``path`` beside
            it, or a string is a URL.

    Example:
        >>> checked_payload([{'path': 'http://10.0.0.1/a.png'}, 0.3], Path('uploads'))
        Traceback (most recent call last):
            ...
        mmlinattn.app.guard.Refused: path 'http://10.0.0.1/a.png' is not an uploaded file: upload \
the image, the page reads no addresses and no other files
    """
    if isinstance(value, dict):
        if 'path' in value or 'url' in value:
            _check_file(value.get('path'), value.get('url'), uploads)
        items = ((key, item) for key, item in value.items() if key != 'url')
        return {key: checked_payload(item, uploads) for key, item in items}
    if isinstance(value, list):
        return [checked_payload(item, uploads) for item in value]
    if isinstance(value, str) and ADDRESS.match(value):
        raise Refused(f'{_shown(value)} is an address: the page reads uploaded images alone')
    return value


def _check_file(path: Any, url: Any, uploads: Path) -> None:
    folder = os.path.realpath(uploads)
    if not isinstance(path, str) or not os.path.realpath(path).startswith(folder + os.sep):
        raise Refused(
            f'path {_shown(path)} is not an uploaded file: upload the image, '
            'the page reads no addresses and no other files'
        )
    if url is None:
        return
    if not isinstance(url, str) or not any(
        form.endswith(f'/file={path}') for form in (url, unquote(url))
    ):
        raise Refused(f'url {_shown(url)} is not that of {path!r}: leave url out')


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f'{text[:100]}...'


class RequestGuard:
    """ASGI middleware that checks requests with :func:`checked_payload` before gradio reads them.

    The application receives the checked JSON, not the bytes of the request. Only uploads may have
    other content.

    Args:
        app: wrapped application.
        uploads: folder of the uploaded files.
    """

    def __init__(self, app: Any, uploads: Path) -> None:
        self.app, self.uploads = app, uploads

    async def __call__(self, scope: dict, receive: Any, send: Any) -> None:
        if scope['type'] == 'http':
            try:
                receive = await self._checked(scope, receive)
            except Refused as error:
                await _answer(send, str(error))
                return
        await self.app(scope, receive, send)

    async def _checked(self, scope: dict, receive: Any) -> Any:
        """Return the ``receive`` callable with the checked body."""
        path = scope['path']
        if '://' in path:  # file=http://..., proxy=http://...
            raise Refused(f'{_shown(path)} has an address: the page reads uploaded images alone')
        if scope['method'] in ('GET', 'HEAD') or path.endswith(UPLOAD):
            return receive
        body = await _body(receive)
        if body:
            try:
                body = json.dumps(checked_payload(json.loads(body), self.uploads)).encode()
            except Refused:
                raise
            except (ValueError, RecursionError) as error:
                raise Refused(f'the request is not JSON: {error}') from error
        first = [dict(type='http.request', body=body, more_body=False)]

        async def replay() -> dict:
            return first.pop() if first else await receive()

        return replay


async def _body(receive: Any) -> bytes:
    parts, size, more = [], 0, True
    while more:
        message = await receive()
        parts.append(message.get('body', b''))
        more = message.get('more_body', False)
        size += len(parts[-1])
        if size > MAX_BODY:
            raise Refused(f'the request has more than {MAX_BODY} bytes and is not an upload')
    return b''.join(parts)


async def _answer(send: Any, text: str) -> None:
    """Send an error in gradio's format; its clients show ``detail``."""
    headers = [(b'content-type', b'application/json')]
    await send(dict(type='http.response.start', status=403, headers=headers))
    await send(dict(type='http.response.body', body=json.dumps(dict(detail=text)).encode()))


_closed = False
_installed = False


@contextmanager
def no_outgoing_connections() -> Iterator[None]:
    """Raise ``OSError`` in the block for connections to other servers and look-ups of their names.

    This covers requests that :class:`RequestGuard` does not know, such as those of a newer gradio.
    Connections of clients to this process, and Unix sockets, still work.
    """
    global _closed, _installed
    if not _installed:
        sys.addaudithook(_refuse_outgoing)  # audit hooks cannot be removed
        _installed = True
    _closed = True
    try:
        yield
    finally:
        _closed = False


def _refuse_outgoing(event: str, arguments: tuple) -> None:
    if not _closed or not event.startswith('socket.'):
        return
    if event in LOOKUPS or (event in OUTGOING and arguments[0].family in INTERNET):
        raise OSError(f'the page connects to no server: {event} {arguments[-1]!r} is refused')
