"""Output of commands, and modules beside a config, on each road to the command line."""

import pytest

from tests.test_cli.test_startup import imports_of

from .conftest import CONFIGS

pytestmark = pytest.mark.slow

EXPORTERS = {'mmlinattn.deployment', 'mmlinattn.app', 'onnx', 'onnxruntime', 'openvino', 'gradio'}
MODULE = """
from mmengine.hooks import Hook
from mmengine.registry import HOOKS


@HOOKS.register_module()
class OwnHook(Hook):
    def before_train(self, runner):
        print('own hook runs')
"""


@pytest.fixture
def config(root, tmp_path):
    """Return the path of a config with a module beside it."""
    folder = tmp_path / 'project'
    folder.mkdir()
    (folder / 'own_hook.py').write_text(MODULE)
    (folder / 'config.py').write_text(
        f'_base_ = {str(root / CONFIGS["seg"])!r}\n'
        "custom_imports = dict(imports=['mmlinattn', 'own_hook'])\n"
        "custom_hooks = [dict(type='OwnHook')]\n"
    )
    return folder / 'config.py'


def test_an_error_comes_without_the_config_and_no_exporter_is_imported(
    root, tmp_path, config, options
):
    """A checkpoint that is not there. The line of modules is the test's own."""
    given = ['--cfg-options', *options('seg')]
    code, modules, done = imports_of(root, 'test', config, 'nowhere.pth', *given, cwd=tmp_path)
    assert code == 2 and 'nowhere.pth' in done.stderr and done.stderr.count('\n') == 1
    assert done.stdout.count('\n') == 1
    assert 'own_hook' in modules and not modules & EXPORTERS
