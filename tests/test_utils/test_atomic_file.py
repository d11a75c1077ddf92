"""Files on a full disk."""

import errno
import os
import tempfile
from pathlib import Path

import pytest

from mmlinattn.utils.atomic_file import (
    WriteError,
    atomic_write,
    check_writable,
    remove_temporaries,
    staged_folder,
)

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_named_before_the_work(tmp_path, monkeypatch):
    """It takes an empty file."""
    message = r'/out/a\.json cannot be written: No space left'
    with Path('/dev/full').open('wb', 0) as full, pytest.raises(WriteError, match=message):
        monkeypatch.setattr(tempfile, 'TemporaryFile', lambda dir: full)
        check_writable(tmp_path / 'out' / 'a.json')


def test_a_folder_on_a_full_disk(tmp_path):
    message = '/shapes cannot be written: No space left'
    with pytest.raises(WriteError, match=message), staged_folder(tmp_path / 'shapes'):
        raise FULL
    assert not list(tmp_path.iterdir())


def test_only_what_a_killed_process_left_is_removed(tmp_path):
    (tmp_path / '.notes.tmp').touch()
    with atomic_write(tmp_path / 'a.txt') as temporary:
        temporary.touch()
        remove_temporaries(tmp_path)
        assert not temporary.exists()
        temporary.touch()
    assert {path.name for path in tmp_path.iterdir()} == {'a.txt', '.notes.tmp'}
