"""The table of tools/misc/matrix.py."""

import importlib.util
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
    assert matrix.main() == 1
    table = capsys.readouterr().out
    assert table == (tmp_path / 'table.md').read_text() + '\n'
    assert f'| {first} | 1 | 1 | 1 |' in table
    assert f'{first}: failed: a::three' in table and f'{first}: 1 skipped: why' in table
    assert f'{second}: pytest did not end, see {second}.log' in table


def test_interpreters(matrix, monkeypatch):
    answers = {'/mine/python': '3.12', 'python3': '3.11', 'python3.13': ''}

    def run(command, **_):
        return SimpleNamespace(stdout=answers[command[0]])

    monkeypatch.setattr(matrix.subprocess, 'run', run)
    assert matrix.interpreter('3.12', ['/mine/python']) == '/mine/python'
    assert matrix.interpreter('3.13', ['/mine/python']) is None


def test_every_environment_has_its_versions(matrix, root):
    for *_, constraints in matrix.ENVIRONMENTS.values():
        assert 'torch==' in (root / 'requirements' / constraints).read_text()
