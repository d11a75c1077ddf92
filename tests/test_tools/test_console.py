"""Output of commands, and modules beside a config, on each road to the command line."""

import pytest

from tests.test_cli.test_startup import imports_of

from .conftest import CONFIGS

pytestmark = pytest.mark.slow

EXPORTERS = {'mmlinattn.deployment', 'mmlinattn.app', 'onnx', 'onnxruntime', 'openvino', 'gradio'}


def test_an_error_comes_without_the_config_and_no_exporter_is_imported(root, tmp_path, options):
    """A checkpoint that is not there. The line of modules is the test's own."""
    config = tmp_path / 'project/config.py'
    config.parent.mkdir()
    config.with_name('own_module.py').touch()
    imports = "custom_imports = dict(imports=['mmlinattn', 'own_module'])"
    config.write_text(f'_base_ = {str(root / CONFIGS["seg"])!r}\n{imports}\n')
    given = ['--cfg-options', *options('seg')]
    code, modules, done = imports_of(root, 'test', config, 'nowhere.pth', *given, cwd=tmp_path)
    assert code == 2 and 'nowhere.pth' in done.stderr and done.stderr.count('\n') == 1
    assert done.stdout.count('\n') == 1
    assert 'own_module' in modules and not modules & EXPORTERS
