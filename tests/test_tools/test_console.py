"""Output of commands, and modules beside a config, on each road to the command line."""

import os
import subprocess
import sys

import pytest
import torch

from mmlinattn.utils.messages import MESSAGES
from tests.test_cli.test_startup import imports_of

from .conftest import CONFIGS

pytestmark = pytest.mark.slow

FOREIGN = (*MESSAGES, 'Unnecessary conv bias', 'Warning')
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


def is_buffer(name):
    return name.endswith(('running_mean', 'running_var', 'num_batches_tracked'))


def call(root, folder, *words):
    """Run Python in a fresh process."""
    return subprocess.run(
        [sys.executable, *map(str, words)], cwd=folder, capture_output=True, text=True,
        env={**os.environ, 'PYTHONPATH': str(root)},
    )  # fmt: skip


def test_a_training_prints_a_summary(root, tmp_path, config, options):
    script, given = root / 'tools/train.py', ['--cfg-options', *options('seg')]
    done = call(root, tmp_path, script, config, '--work-dir', 'work', *given)
    assert done.returncode == 0 and done.stderr == '', done.stderr
    assert 'own hook runs' in done.stdout
    assert not [text for text in FOREIGN if text in done.stdout]
    start, _, _ = done.stdout.partition('Iter(train)')
    assert len(start.splitlines()) <= 22
    rows = dict(line[2:].split('  ', 1) for line in start.splitlines() if line.startswith('  '))
    rows = {name: text.strip() for name, text in rows.items()}
    assert rows['train data'].startswith('BaseSegDataset, 16 images, ')
    assert rows['val data'].startswith('BaseSegDataset, 4 images, ')
    assert rows['batch'] == '4' and rows['weights'] == 'random'
    assert rows['attention'] == '2 x RALA, 3 x SoftmaxAttention'
    assert rows['schedule'] == '1 iteration, validation every 1'
    assert rows['optimizer'].startswith('AdamW, lr ') and rows['precision'] == 'float32'
    (log,) = (tmp_path / 'work').glob('*/*.log')
    text = log.read_text()
    assert rows['log file'].startswith(str(log.relative_to(tmp_path)))
    (checkpoint,) = (tmp_path / 'work').glob('*.pth')
    weights = torch.load(checkpoint, weights_only=False)['state_dict']
    count = sum(w.numel() for name, w in weights.items() if not is_buffer(name))
    assert rows['parameters'] == f'{count / 1e6:.2f} M, {count / 1e6:.2f} M trained'
    for part in ('System environment:', 'optim_wrapper = dict(', 'Hooks will be executed'):
        assert part in text and part not in done.stdout


def test_an_error_comes_without_the_config_and_no_exporter_is_imported(
    root, tmp_path, config, options
):
    """A checkpoint that is not there. The line of modules is the test's own."""
    given = ['--cfg-options', *options('seg')]
    code, modules, done = imports_of(root, 'test', config, 'nowhere.pth', *given, cwd=tmp_path)
    assert code == 2 and 'nowhere.pth' in done.stderr and done.stderr.count('\n') == 1
    assert done.stdout.count('\n') == 1
    assert 'own_hook' in modules and not modules & EXPORTERS
