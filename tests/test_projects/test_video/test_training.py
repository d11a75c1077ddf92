"""Training, testing and resuming a recogniser of videos."""

import json

import cv2
import numpy as np
import pytest
import torch

from mmlinattn.engine.preflight import sample_loading
from mmlinattn.projects.video.moving_shapes import draw_clip

CONFIG = """
_base_ = {base!r}
root, names = {root!r}, 'img_{{:05}}.png'
frames = dict(data_root=root, data_prefix=dict(video='frames'), frame_template=names)
train_dataloader = dict(batch_size=4, dataset=frames)
val_dataloader = dict(batch_size=2, dataset=frames)
test_dataloader = val_dataloader
arch = dict(_delete_=True, embed_dims=16, num_heads=2, depth=1, patch_size=16)
model = dict(backbone=dict(arch=arch), head=dict(in_channels=16))
optim_wrapper = dict(_delete_=True, type='OptimWrapper', optimizer=dict(type='SGD', lr=0.05))
param_scheduler = []
train_cfg = dict(max_epochs={epochs}, val_interval={epochs})
default_hooks = dict(logger=dict(interval=1))
custom_hooks = [dict(type='ExactResumeHook')]
"""


@pytest.fixture(scope='module')
def frames(tmp_path_factory):
    """Moving Shapes as folders of frames, which need no PyAV."""
    root = tmp_path_factory.mktemp('moving')
    for i, split in enumerate(('train', 'val')):
        lines = []
        for j in range((8, 4)[i]):
            name, label = f'{split}_{j}', j % 4
            (root / 'frames' / name).mkdir(parents=True)
            clip = draw_clip(np.random.default_rng([i, j]), label, 32, 8)
            for number, frame in enumerate(clip, 1):
                cv2.imwrite(f'{root}/frames/{name}/img_{number:05}.png', frame[..., ::-1])
            lines.append(f'{name} 8 {label}')
        (root / f'{split}.txt').write_text('\n'.join(lines))
    return root


@pytest.fixture
def config(root, frames, tmp_path):
    def make(scheme='divided', epochs=2, **options):
        base = f'{root}/configs/timesformer/timesformer-nano-{scheme}_moving-shapes.py'
        path = tmp_path / f'{scheme}_{epochs}.py'
        path.write_text(CONFIG.format(base=base, root=str(frames), epochs=epochs))
        return path

    return make


def test_check_data_reads_videos(run, config, capsys):
    assert run('check-data', config()) == 0
    assert 'train: 8 samples\nval: 4 samples\nnothing found' in capsys.readouterr().out
    options = '--cfg-options', 'train_dataloader.dataset.frame_template=f_{}.png'
    assert run('check-data', config(), *options) == 1
    assert 'train: 8 x unreadable' in capsys.readouterr().out


@pytest.mark.parametrize(
    'command, arguments',
    [
        ('analyze complexity', ['--shape', 32, 32]),
        ('analyze throughput', ['--shape', 32, 32]),
        ('analyze rank', ['--shape', 32, 32]),
        ('analyze key-weights', []),
        ('export', ['none.pth', '--shape', 32, 32]),
    ],
)
def test_commands_for_images(run, config, error_of, command, arguments):
    error = error_of(run, command, config(), *arguments, debug=False)
    assert 'is a config for videos, which this command does not support' in error


def weights(path):
    return torch.load(path, weights_only=False)['state_dict']


def test_train_test_and_resume(run, config, tmp_path):
    whole, parts = tmp_path / 'whole', tmp_path / 'parts'
    run('train', config(), '--work-dir', whole)
    run('train', config(epochs=1), '--work-dir', parts)
    run('train', config(), '--work-dir', parts, '--resume')
    expected, found = weights(whole / 'epoch_2.pth'), weights(parts / 'epoch_2.pth')
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    three = 'test_dataloader.dataset.pipeline.1.mode=three'
    run(
        'test', config(), whole / 'epoch_2.pth', '--work-dir', tmp_path / 'test',
        '--cfg-options', three,
    )  # fmt: skip
    scores = json.loads(next((tmp_path / 'test').glob('*/*.json')).read_text())
    trained = [json.loads(x) for x in next(whole.glob('*/vis_data/scalars.json')).open()]
    # The crops of a square video are alike.
    assert scores['accuracy/top1'] == pytest.approx(trained[-1]['accuracy/top1'])


@pytest.mark.parametrize(
    'option, error',
    [
        ('train_dataloader.dataset.ann_file=none.txt', 'none.txt'),
        ('train_dataloader.dataset.data_prefix.video=nowhere', 'nowhere'),
        ('train_dataloader.dataset.frame_template=f_{}.png', 'f_1.png'),
        ('model.head.num_classes=3', 'num_classes is 3, but the data set'),
        (
            'model.head.num_classes=3 train_dataloader.dataset.metainfo=None '
            'val_dataloader.dataset.metainfo=None',
            'train_3 has the label 3, the labels of 3 classes are 0 to 2',
        ),
        ('train_dataloader.dataset.pipeline.2.size=64', 'short_side=64) before it'),
        ('model.head.in_channels=64', 'set model.head.in_channels=16'),
    ],
)
def test_mistakes_are_one_line(run, config, tmp_path, error_of, monkeypatch, option, error):
    monkeypatch.setattr(sample_loading, 'LOOKED_AT', 1)  # and the greatest label
    words = 'train', config(epochs=1), '--work-dir', tmp_path / 'w', '--cfg-options'
    assert error in error_of(run, *words, *option.split(), debug=False)
