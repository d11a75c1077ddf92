"""Errors as a user sees them: one line, with words."""

import errno
import io
import os
import signal
import tempfile

import pytest
from mmengine.config import Config
from mmengine.config import config as mmengine_config
from rich.table import Table
from torch.utils.data import DataLoader
from yapf.yapflib import yapf_api

from mmlinattn.engine.preflight.data import DataError
from mmlinattn.utils.command_line import errors_in_one_line, plain_console, progress_bars


class Broken:
    def __init__(self, kind):
        self.kind = kind

    def __len__(self):
        return 2

    def __getitem__(self, i):
        raise self.kind(f'{i}.jpg cannot be read:\n  a reason: of two lines')


def said(error_of, function):
    return error_of(errors_in_one_line(debug=False)(function))


@pytest.mark.parametrize('kind', [DataError, ValueError])
def test_of_a_worker_what_it_said(error_of, kind):
    line = said(error_of, lambda: next(iter(DataLoader(Broken(kind), num_workers=1))))
    words = '0.jpg cannot be read: a reason: of two lines'
    assert line.startswith(f'error: {kind.__name__}: {words} (')


def test_without_words_the_place(error_of):
    def check():
        raise AssertionError

    line = said(error_of, check)
    assert line.startswith('error: AssertionError: raise AssertionError (line ')
    assert __file__ in line


def test_of_a_key_its_words(error_of):
    def look_up():
        raise KeyError("'lin' is not registered")

    assert said(error_of, look_up).startswith("error: KeyError: 'lin' is not registered (")


def test_of_a_full_disk_the_folder(capsys, tmp_path):
    with pytest.raises(SystemExit), errors_in_one_line(debug=False, log_dir=str(tmp_path)):
        raise OSError(errno.ENOSPC, 'No space left on device')
    assert f'device: if the disk of {tmp_path} is full, free space' in capsys.readouterr().err


def test_console_prints_text_as_it_is():
    out, name = io.StringIO(), '[bold][/up]:cat:'
    console = plain_console(file=out, width=60)
    table = Table(name, title=name)
    table.add_row(name)
    console.print(table)
    with progress_bars(console) as bars:
        bars.add_task(name, total=1)
        bars.console.print(name)
    assert out.getvalue().count(name) == 5


def test_sigterm_unwinds(tmp_path):
    """Temporary folders are removed; a second signal meanwhile changes nothing."""
    before = signal.getsignal(signal.SIGTERM)
    with (
        pytest.raises(SystemExit) as stopped,
        errors_in_one_line(debug=False),
        tempfile.TemporaryDirectory(dir=tmp_path),
    ):
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)
    assert stopped.value.code == 143 and not list(tmp_path.iterdir())
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize('number, code', [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_mmengine_formats_a_config(monkeypatch, number, code):
    """As at every checkpoint: its ``except:`` makes a SyntaxError of it, with the whole config."""
    for module in (yapf_api, mmengine_config):  # MMEngine 0.10 imports it at once
        change = dict(name='FormatCode', value=lambda *_, **__: signal.raise_signal(number))
        monkeypatch.setattr(module, **change, raising=False)
    with pytest.raises(SystemExit) as stopped, errors_in_one_line(debug=False, kinds=(OSError,)):
        Config(dict(a=1)).pretty_text  # noqa: B018
    assert stopped.value.code == code


def test_sigterm_of_a_worker():
    """A forked process ends at once, as without the handler."""
    with errors_in_one_line(debug=False):
        child = os.fork()
        if child == 0:
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGTERM


def test_an_own_handler_inside_decides():
    told = []
    with errors_in_one_line(debug=False):
        outer = signal.signal(signal.SIGTERM, lambda *_: told.append(True))
        signal.raise_signal(signal.SIGTERM)
        signal.signal(signal.SIGTERM, outer)
    assert told == [True]
