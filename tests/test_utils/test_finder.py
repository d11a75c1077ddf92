"""How the stand-in steps in: where mmcv is not compiled, before anything imports mmcv.ops."""

import importlib.util
import subprocess
import sys

import pytest

import mmlinattn_mmcv

FINDER = mmlinattn_mmcv.StandInFinder


def python(code: str, **kwargs) -> str:
    """What another Python prints."""
    run = [sys.executable, '-c', code]
    result = subprocess.run(run, capture_output=True, text=True, **kwargs)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@pytest.fixture
def module():
    """Loads the stand-in as ``import mmcv._ext`` would, under that name but for this test."""

    def load():
        spec = FINDER.find_spec('mmcv._ext')
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


def test_it_answers_to_one_name_and_comes_last():
    assert FINDER.find_spec('mmcv') is FINDER.find_spec('mmcv._ext.nms') is None
    assert FINDER.find_spec('_ext') is None
    assert sys.meta_path.count(FINDER) == 1


def test_the_module_has_a_spec(module):
    """torch.compile and importlib ask for it."""
    loaded = module()
    assert loaded.__name__ == loaded.__spec__.name == 'mmcv._ext'
    assert importlib.util.find_spec('mmcv._ext') is not None


@pytest.mark.parametrize('compiled', [False, True])
def test_it_keeps_out_of_the_way_of_compiled_operators(root, tmp_path, compiled):
    package = tmp_path / 'mmcv'
    package.mkdir()
    (package / '__init__.py').touch()
    if compiled:
        (package / '_ext.py').touch()
    found = python(
        f'import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(root)!r}]\n'
        'import mmlinattn_mmcv, importlib.util\n'
        'print(importlib.util.find_spec("mmcv._ext").origin)'
    )
    expected = package / '_ext.py' if compiled else root / 'mmlinattn/utils/mmcv_ops.py'
    assert found == str(expected)


def test_the_finder_imports_nothing(root):
    before = 'import sys; from importlib import util; before = set(sys.modules)\n'
    after = 'import mmlinattn_mmcv; print(*sorted(set(sys.modules) - before))'
    code = f'import sys; sys.path.insert(0, {str(root)!r})\n{before}{after}'
    assert python(code) in ('', 'mmlinattn_mmcv')  # '': imported when Python started


def test_the_stand_in_imports_nothing_of_this_package(root):
    code = (
        f'import sys; sys.path.insert(0, {str(root)!r})\n'
        'import mmlinattn_mmcv\n'
        'spec = mmlinattn_mmcv.StandInFinder.find_spec("mmcv._ext")\n'
        'spec.loader.exec_module(__import__("importlib.util").util.module_from_spec(spec))\n'
        'print(sorted({"mmlinattn", "mmcv", "mmengine", "torchvision"} & set(sys.modules)))'
    )
    assert python(code) == "['torchvision']"


class BrokenTorchvision:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == 'torchvision':
            raise RuntimeError('operator torchvision::nms does not exist')


@pytest.mark.parametrize('state', ['absent', 'of another torch'])
def test_no_torchvision_says_so(module, monkeypatch, state):
    if state == 'absent':
        monkeypatch.setitem(sys.modules, 'torchvision', None)
    else:
        monkeypatch.delitem(sys.modules, 'torchvision', raising=False)
        monkeypatch.setattr(sys, 'meta_path', [BrokenTorchvision, *sys.meta_path])
    with pytest.raises(ImportError, match='torchvision.* cannot be imported next to torch'):
        module()
