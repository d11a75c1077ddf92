"""The object store of the fixture ``bucket``."""

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
