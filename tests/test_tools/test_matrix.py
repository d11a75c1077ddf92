"""The table of tools/misc/matrix.py."""

import importlib.util
import re
import sys
from types import SimpleNamespace

import pytest

REPORT = """<testsuites><testsuite>
<testcase classname="a" name="one"/>
<testcase classname="a" name="two"><skipped message="why"/></testcase>
<testcase classname="a" name="three"><failure message="no"/></testcase>
</testsuite></testsuites>"""


@pytest.fixture
def matrix(root):
    spec = importlib.util.spec_from_file_location('matrix', root / 'tools/misc/matrix.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_table(matrix, monkeypatch, tmp_path, capsys):
    """One environment whose tests ended, one whose pytest died."""
    first, second = list(matrix.ENVIRONMENTS)[:2]
    (tmp_path / f'{first}.xml').write_text(REPORT)
    monkeypatch.setattr(matrix, 'set_up', lambda *_: 'python')
    monkeypatch.setattr(matrix, 'run_tests', lambda _, folder, __: tmp_path / f'{folder.name}.xml')
    monkeypatch.setattr(sys, 'argv', ['matrix.py', first, second, '--folder', str(tmp_path)])
    monkeypatch.setattr(matrix, 'commit', lambda: 'abc123-dirty')
    assert matrix.main() == 1
    table = capsys.readouterr().out
    assert table.startswith('Commit abc123-dirty, 20')
    assert table == (tmp_path / 'table.md').read_text() + '\n'
    assert f'| {first} | 1 | 1 | 1 |' in table
    assert f'{first}: failed: a::three' in table and f'{first}: 1 skipped: why' in table
    assert f'{second}: pytest did not end, see {second}.log' in table


def test_short_runs_its_files_with_the_oldest_and_the_newest_torch(
    matrix, root, monkeypatch, tmp_path
):
    runs = {}

    def run_tests(python, folder, arguments):
        runs[folder.name] = arguments
        report = tmp_path / f'{folder.name}.xml'
        report.write_text('<testsuites/>')
        return report

    monkeypatch.setattr(matrix, 'set_up', lambda *_: 'python')
    monkeypatch.setattr(matrix, 'run_tests', run_tests)
    command = ['matrix.py', '--short', '--folder', str(tmp_path), '--pytest', '-k', 'resume']
    monkeypatch.setattr(sys, 'argv', command)
    assert matrix.main() == 0
    assert all((root / file).is_file() for file in matrix.SHORT_TESTS)
    assert set(map(tuple, runs.values())) == {(*matrix.SHORT_TESTS, '-k', 'resume')}
    minor = {name: int(re.search(r'torch2\.(\d+)', name)[1]) for name in matrix.ENVIRONMENTS}
    assert list(runs) == [min(minor, key=minor.get), max(minor, key=minor.get)]


def test_set_up_runs_no_tests(matrix, monkeypatch, tmp_path):
    made = []
    monkeypatch.setattr(matrix, 'set_up', lambda name, *_: made.append(name))
    monkeypatch.setattr(sys, 'argv', ['matrix.py', '--set-up', '--folder', str(tmp_path)])
    assert matrix.main() == 0
    assert made == list(matrix.ENVIRONMENTS) and not list(tmp_path.iterdir())


def test_interpreters(matrix, monkeypatch, tmp_path):
    pyenv = tmp_path / 'versions/3.10.13/bin/python'
    pyenv.parent.mkdir(parents=True)
    pyenv.touch()
    monkeypatch.setenv('PYENV_ROOT', str(tmp_path))
    answers = {
        '/mine/python': '3.12', 'python3': '3.11', 'python3.13': '', 'python3.10': '',
        str(pyenv): '3.10',
    }  # fmt: skip

    def run(command, **_):
        return SimpleNamespace(stdout=answers[command[0]])

    monkeypatch.setattr(matrix.subprocess, 'run', run)
    assert matrix.interpreter('3.12', ['/mine/python']) == '/mine/python'
    assert matrix.interpreter('3.13', ['/mine/python']) is None
    assert matrix.interpreter('3.10', []) == str(pyenv)


def test_every_environment_has_its_versions(matrix, root):
    for *_, constraints in matrix.ENVIRONMENTS.values():
        assert 'torch==' in (root / 'requirements' / constraints).read_text()
