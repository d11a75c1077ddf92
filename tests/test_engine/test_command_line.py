"""Errors as a user sees them: one line, with words."""

import io
import re

import pytest
from mmengine.registry import MODELS
from rich.table import Table
from torch.utils.data import DataLoader

from mmlinattn.engine.command_line import errors_in_one_line, plain_console, progress_bars
from mmlinattn.engine.data_checks import DataError


class Broken:
    def __init__(self, kind):
        self.kind = kind

    def __len__(self):
        return 2

    def __getitem__(self, i):
        raise self.kind(f'{i}.jpg cannot be read:\n  a reason: of two lines')


def said(capsys, function):
    with pytest.raises(SystemExit) as stopped, errors_in_one_line(debug=False):
        function()
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize('kind', [DataError, ValueError])
def test_of_a_worker_what_it_said(capsys, kind):
    line = said(capsys, lambda: next(iter(DataLoader(Broken(kind), num_workers=1))))
    words = '0.jpg cannot be read: a reason: of two lines'
    assert line.startswith(f'error: {kind.__name__}: {words} (')


def test_without_words_the_place(capsys):
    def check():
        raise AssertionError

    line = said(capsys, check)
    assert line.startswith('error: AssertionError: raise AssertionError (line ')
    assert __file__ in line


def test_of_a_key_its_words(capsys):
    def look_up():
        raise KeyError("'lin' is not registered")

    assert said(capsys, look_up).startswith("error: KeyError: 'lin' is not registered (")


@pytest.mark.parametrize(
    'option, meant',
    [
        (dict(type='RAVLT', norm_eva=True), 'norm_eval'),  # of the class that all hosts share
        (dict(type='RAVLT', attn_cfg=dict(type='RALA', backnd='auto')), 'backend'),
        (dict(type='RAVLT', xyzzy=True), None),
    ],
)
def test_an_argument_that_no_class_has(capsys, option, meant):
    line = said(capsys, lambda: MODELS.build(option))
    assert ('did you mean' in line) == (meant is not None)
    assert meant is None or f'; did you mean {meant}? (' in line


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


def test_every_console_is_plain(root):
    """Names of files that look like rich's markup end a command in an error, or are changed."""
    made = re.compile(r"\b(?:Console\(|TextColumn\('\{task)[^)]*\)")
    calls = []
    for path in [*(root / 'mmlinattn').rglob('*.py'), *(root / 'tools').rglob('*.py')]:
        calls += [(path.name, call) for call in made.findall(path.read_text(encoding='utf-8'))]
    assert len(calls) > 3
    fixed = ('demo.py', "TextColumn('{task.description:<26}')")  # names of its own stages
    assert not [call for call in calls if 'markup=False' not in call[1] and call != fixed]
