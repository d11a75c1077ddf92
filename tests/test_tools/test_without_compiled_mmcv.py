"""Training on mmcv-lite and the stand-in, by our tools and by MMDetection's own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mmlinattn.utils import mmcv_ops

from .conftest import CONFIGS

pytestmark = pytest.mark.slow


def test_mask_rcnn_ends_with_the_same_weights(quick, tmp_path, compiled, mmcv_runs_on):
    ends = []
    for extension in (compiled, mmcv_ops):
        mmcv_runs_on(extension)
        work = tmp_path / str(len(ends))
        quick('train', 'det', '--work-dir', work, length=2)
        checkpoint = torch.load((work / 'last_checkpoint').read_text(), weights_only=False)
        ends.append(checkpoint['state_dict'])
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


# As three commands, in one process: each import of the frameworks takes seconds.
MMDETECTION = """
import runpy, sys
from mmdet.apis import DetInferencer  # before any config is read
assert 'mmlinattn' not in sys.modules
train, test, config, work, picture, *options = sys.argv[1:]
sys.argv[1:] = [config, '--work-dir', work, *options]
runpy.run_path(train, run_name='__main__')
checkpoint = open(work + '/last_checkpoint').read()
sys.argv[1:] = [config, checkpoint, '--work-dir', work + '/test', *options]
runpy.run_path(test, run_name='__main__')
inferencer = DetInferencer(config, checkpoint, device='cpu', show_progress=False)
result = inferencer(picture, out_dir=work + '/out')
assert len(result['predictions']) == 1
"""


def test_mmdetection_runs_it_with_custom_imports_alone(root, shapes_root, tmp_path):
    mmdet = pytest.importorskip('mmdet')
    tools = Path(mmdet.__file__).parent / '.mim' / 'tools'
    if not tools.is_dir():
        pytest.skip('this MMDetection came without its tools')
    env = {**os.environ, 'PYTHONPATH': str(root)}
    (tmp_path / 'data').mkdir()
    (tmp_path / 'data' / 'shapes').symlink_to(shapes_root)  # where the config looks
    config, work = root / CONFIGS['det'], tmp_path / 'work'
    options = ['--cfg-options', 'train_cfg.max_epochs=1', 'train_cfg.val_interval=1']
    picture = next((shapes_root / 'coco' / 'val2017').iterdir())
    arguments = [tools / 'train.py', tools / 'test.py', config, work, picture, *options]
    run = [sys.executable, '-c', MMDETECTION, *map(str, arguments)]
    result = subprocess.run(run, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert list((work / 'test').glob('*/*.json'))
    assert list((work / 'out').rglob('*.jpg'))
