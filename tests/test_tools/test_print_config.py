import subprocess
import sys

from mmengine.config import Config

from .conftest import CONFIGS


def test_prints_what_training_would_see(root, tmp_path):
    command = [sys.executable, root / 'tools/misc/print_config.py', root / CONFIGS['seg']]
    options = ['--cfg-options', 'model.backbone.cpe=False', "custom_hooks=[dict(type='EMAHook')]"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
    path = tmp_path / 'whole.py'
    path.write_text(done.stdout)
    saved, source = Config.fromfile(path), Config.fromfile(root / CONFIGS['seg'])
    assert saved.model.backbone.pop('cpe') is False
    assert [hook.type for hook in saved.pop('custom_hooks')] == ['EMAHook']
    source.pop('custom_hooks', None)
    assert saved.to_dict() == source.to_dict()
    failed = subprocess.run(
        [*command, '--cfg-options', 'optim_wraper.lr=1'], capture_output=True, text=True
    )
    assert failed.returncode == 2
    assert "no 'optim_wraper'; did you mean optim_wrapper" in failed.stderr
    assert '--debug' not in failed.stderr  # it has no such option
