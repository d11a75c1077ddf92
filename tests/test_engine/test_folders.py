"""A folder has one training: locks that end with their process, and what is removed under them."""

import errno
import os
import signal
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from mmlinattn.engine.runner import work_dir_lock
from mmlinattn.engine.runner.work_dir_lock import lock_work_dir
from mmlinattn.utils import (
    FolderInUse,
    WriteError,
    atomic_write,
    lock,
    lock_folder,
    staged_folder,
    unlock_folders,
)
from mmlinattn.utils.atomic_file import remove_temporary_files
from tests.programs import Program

# Its child lives on when it is killed, as a data-loader worker does for a while.
HOLDER = """
import os, sys, time
from pathlib import Path
from mmlinattn.utils import lock_folder
assert lock_folder(Path(sys.argv[1]))
os.fork()
print('locked', flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def _no_locks_left():
    yield
    unlock_folders()


@pytest.fixture
def holder(root, tmp_path):
    """Another process that has locked the folder ``work``."""
    script = tmp_path / 'holder.py'
    script.write_text(HOLDER)
    program = Program(script, [tmp_path / 'work'], tmp_path / 'holder.out', [root])
    program.wait_for('locked', times=2)
    yield program
    program.kill()


def test_a_lock_ends_with_its_process_and_not_with_its_children(holder, tmp_path):
    work = tmp_path / 'work'
    pid = holder.process.pid
    for _ in range(2):
        with pytest.raises(FolderInUse, match=f'process {pid} on {socket.gethostname()}; end'):
            lock_folder(work)
    os.kill(pid, signal.SIGKILL)
    holder.process.join()
    assert lock_folder(work) and lock_folder(work)
    assert (work / lock.LOCK).read_text() == f'process {os.getpid()} on {socket.gethostname()}'
    unlock_folders()
    assert [*work.iterdir()] == []


@pytest.fixture
def said(monkeypatch) -> list:
    """What the log says."""
    texts: list = []
    for name in ('print_log', 'log_warning'):
        monkeypatch.setattr(work_dir_lock, name, lambda text, *_: texts.append(text))
    return texts


def test_a_restarted_training_waits_for_the_former_one(holder, tmp_path, said):
    with pytest.raises(FolderInUse):
        lock_work_dir(str(tmp_path / 'work'))
    threading.Timer(1, os.kill, (holder.process.pid, signal.SIGKILL)).start()
    assert lock_work_dir(str(tmp_path / 'work'), restarted=True)
    (text,) = said
    assert text.startswith(f'waiting up to 35 s: {tmp_path / "work"} is in use by ')


@pytest.mark.parametrize('code', [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks(tmp_path, monkeypatch, said, code):
    def refuse(*_) -> None:
        raise OSError(code, 'no locks')

    monkeypatch.setattr(lock.fcntl, 'lockf', refuse)
    assert lock_work_dir(str(tmp_path)) is False
    (text,) = said
    assert text.endswith('has no locks; start no other training in this folder')
    assert [*tmp_path.iterdir()] == []


def test_a_lock_file_that_its_holder_removes_meanwhile(tmp_path, monkeypatch):
    real, calls = lock.fcntl.lockf, []

    def after_removal(file, flags) -> None:
        calls.append(file)
        if len(calls) == 1:
            Path(file.name).unlink()
        real(file, flags)

    monkeypatch.setattr(lock.fcntl, 'lockf', after_removal)
    assert lock_folder(tmp_path)
    assert len(calls) == 2 and (tmp_path / lock.LOCK).read_text()


def test_a_folder_that_cannot_be_written_to():
    with pytest.raises(WriteError, match=r'/sys/mmlinattn/\.training\.lock cannot be written'):
        lock_folder(Path('/sys/mmlinattn'))


def test_temporary_files_of_running_processes_stay(tmp_path):
    ended = subprocess.Popen(['true'])
    ended.wait()
    numbers = (os.getppid(), os.getpid(), ended.pid, 10**30)
    names = {pid: f'.model.pth.{pid}.tmp' for pid in numbers}
    for name in (*names.values(), '.model.pth.old.tmp'):
        (tmp_path / name).touch()
    with atomic_write(tmp_path / 'a.txt') as temporary:
        temporary.write_text('a')
    remove_temporary_files(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {'a.txt', names[os.getppid()]}


def test_a_staging_folder_that_a_killed_process_has_left_is_replaced(tmp_path):
    left = tmp_path / f'.set.partial-{os.getpid()}'
    left.mkdir()
    (left / 'old').touch()
    with staged_folder(tmp_path / 'set') as staging:
        (staging / 'new').touch()
    with pytest.raises(KeyError), staged_folder(tmp_path / 'other'):
        raise KeyError
    assert [path.name for path in tmp_path.iterdir()] == ['set']
    assert [path.name for path in (tmp_path / 'set').iterdir()] == ['new']
