"""Training and testing on mmcv-lite and the stand-in, by our tools and by MMDetection's own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from mmlinattn.utils import mmcv_ops

from .conftest import CONFIGS

pytestmark = pytest.mark.slow

RETINANET = """
_base_ = [
    '{configs}/_base_/models/retinanet_ravlt-nano_fpn.py',
    '{configs}/_base_/datasets/shapes_instance.py',
    '{configs}/_base_/schedules/nano_adamw.py',
    '{configs}/_base_/runtime_det.py',
]
model = dict(bbox_head=dict(num_classes=5), test_cfg=dict(score_thr=0))  # sure of nothing yet
val_evaluator = dict(metric='bbox')
test_evaluator = val_evaluator
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=1, val_interval=1)
"""
# What the model calls of the operators on a CPU.
CALLED = {
    'mask-rcnn': {'nms', 'roi_align_forward', 'roi_align_backward'},
    'retinanet': {'nms'},
    'smca': set(),
    'semantic-fpn': set(),
}


def config_of(name: str, root: Path, folder: Path) -> Path:
    if name == 'retinanet':
        config = folder / 'retinanet.py'
        config.write_text(RETINANET.format(configs=(root / 'configs').as_posix()))
        return config
    others = {
        'mask-rcnn': CONFIGS['det'],
        'semantic-fpn': CONFIGS['seg'],
        'smca': 'configs/smca/smca_nano_shapes.py',
    }
    return root / others[name]


def losses(work_dir: Path) -> list:
    lines = [json.loads(x) for x in next(work_dir.glob('*/vis_data/scalars.json')).open()]
    return [line['loss'] for line in lines if 'loss' in line]


@pytest.mark.parametrize('name', CALLED)
def test_it_trains_and_tests(root, run, options, tmp_path, on_stand_in, monkeypatch, name):
    called = set()

    def spy_on(name):
        function = getattr(mmcv_ops, name)

        def spy(*args, **kwargs):
            called.add(name)
            return function(*args, **kwargs)

        monkeypatch.setattr(mmcv_ops, name, spy)

    for operator in mmcv_ops.OPERATORS:
        spy_on(operator)
    config, work = config_of(name, root, tmp_path), tmp_path / 'train'
    extra = options('seg' if name == 'semantic-fpn' else 'det')
    run('train', config, '--work-dir', work, '--cfg-options', *extra)
    checkpoint = (work / 'last_checkpoint').read_text()
    run('test', config, checkpoint, '--work-dir', tmp_path / 'test', '--cfg-options', *extra)
    assert np.isfinite(losses(work)).all()
    assert list((tmp_path / 'test').glob('*/*.json'))
    assert called == CALLED[name]


def test_mask_rcnn_ends_with_the_same_weights(root, run, options, tmp_path, compiled, mmcv_runs_on):
    ends = []
    for extension in (compiled, mmcv_ops):
        mmcv_runs_on(extension)
        work = tmp_path / str(len(ends))
        run('train', root / CONFIGS['det'], '--work-dir', work, '--cfg-options',
            *options('det', 2))  # fmt: skip
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
