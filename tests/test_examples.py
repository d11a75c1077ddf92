"""The examples in the docstrings of the package."""

import doctest
import importlib
import tempfile
from collections import OrderedDict
from pathlib import Path

import pytest
from mmengine.registry import DefaultScope

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted((ROOT / 'mmlinattn').rglob('*.py'))
MODULES = [
    '.'.join(path.relative_to(ROOT).with_suffix('').parts).removesuffix('.__init__')
    for path in FILES
    if '>>>' in path.read_text(encoding='utf-8')
]


@pytest.mark.parametrize('name', MODULES)
def test_examples(name, tmp_path, monkeypatch, capsys):
    """From the root of the repository, where a reader would try them, without files left over."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(DefaultScope, '_instance_dict', OrderedDict())  # of tests before this one
    monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted and not result.failed, capsys.readouterr().out
