"""The environments of tools/misc/matrix.py."""

import importlib.util
import re
import sys

import pytest


@pytest.fixture
def matrix(root):
    spec = importlib.util.spec_from_file_location('matrix', root / 'tools/misc/matrix.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
    monkeypatch.setattr(sys, 'argv', ['matrix.py', '--short', '--folder', str(tmp_path)])
    assert matrix.main() == 0
    assert all((root / file).is_file() for file in matrix.SHORT_TESTS)
    minor = {name: int(re.search(r'torch2\.(\d+)', name)[1]) for name in matrix.ENVIRONMENTS}
    assert list(runs) == [min(minor, key=minor.get), max(minor, key=minor.get)]
    for *_, constraints in matrix.ENVIRONMENTS.values():
        assert 'torch==' in (root / 'requirements' / constraints).read_text()
