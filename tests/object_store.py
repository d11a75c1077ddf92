"""The object store of the fixture ``bucket``."""

import logging
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path

from mmengine.fileio import get_file_backend

# Of nothing, and must turn up nowhere.
KEY_ID, SECRET = 'AKIAFAKEFAKEFAKEFAKE', 'fake+secret/0123456789abcdefghijklmnopqr'


def upload(folder: Path, address: str) -> None:
    """All files of a folder, below an address."""
    store = get_file_backend(address)
    for path in folder.rglob('*'):
        if path.is_file():
            store.put(path.read_bytes(), f'{address}/{path.relative_to(folder)}')


def serve_objects(pipe: Connection) -> None:
    """Serve objects until the other end of the pipe is closed; send the address first."""
    server = import_module('moto.server').ThreadedMotoServer('127.0.0.1', 0, verbose=False)
    logging.getLogger('werkzeug').setLevel(logging.ERROR)
    server.start()
    pipe.send(server.get_host_and_port())
    pipe.poll(None)
    server.stop()
