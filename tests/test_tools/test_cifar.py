"""The CIFAR-100 configs train and validate on files as they are released."""

import json

import pytest

from tests.cifar import write_cifar100

CONFIG = 'configs/ripple/deit-t-la_8xb64_cifar100.py'
TINY = [
    'model.backbone.arch.depth=1', 'model.backbone.arch.embed_dims=16',
    'model.backbone.arch.num_heads=2', 'model.head.in_channels=16', 'train_cfg.max_epochs=1',
    'train_dataloader.batch_size=4', 'default_hooks.logger.interval=1',
]  # fmt: skip


@pytest.fixture
def options(tmp_path):
    root, _ = write_cifar100(tmp_path / 'cifar-100-binary')
    found = list(TINY)
    for loader in ('train_dataloader', 'val_dataloader', 'test_dataloader'):
        found += [f'{loader}.dataset.data_root={root}', f'{loader}.num_workers=0']
        found += [f'{loader}.persistent_workers=False']
    return found


def test_train_then_test(root, run, options, tmp_path):
    work, tested = tmp_path / 'work', tmp_path / 'tested'
    run('train', root / CONFIG, '--work-dir', work, '--cfg-options', *options)
    lines = [json.loads(line) for line in next(work.glob('*/vis_data/scalars.json')).open()]
    losses = [line['loss'] for line in lines if 'loss' in line]
    # Of 100 classes.
    assert len(losses) == 2 and all(3.5 < loss < 6 for loss in losses)
    checkpoint = work / 'epoch_1.pth'
    run('test', root / CONFIG, checkpoint, '--work-dir', tested, '--cfg-options', *options)
    scores = json.loads(next(tested.glob('*/*.json')).read_text())
    for name in ('accuracy/top1', 'accuracy/top5'):
        assert 0 <= scores[name] == lines[-1][name] <= 100
