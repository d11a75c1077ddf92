"""The small models of configs/modern_heads on Shapes, by the commands that users have.

One step in the short version; in the long one the schedules of the configs, and scores.
"""

import json

import numpy as np
import pytest

from mmlinattn.datasets import shapes

from ..sizes import LONG, some
from .conftest import FOLDERS
from .test_train_and_test import metrics

BOX, MASK = 'coco/bbox_mAP', 'coco/segm_mAP'
# What keeps every box of a detector that is barely trained; scores after the whole schedule.
MODELS = {
    'rtmdet-ins_nano': ('model.test_cfg.score_thr=0', {BOX: 0.15, MASK: 0.12}),
    'rtmdet_nano': ('model.test_cfg.score_thr=0', {BOX: 0.12}),
    'vitdet_nano': ('model.test_cfg.rcnn.score_thr=0', {BOX: 0.4, MASK: 0.3}),
    'eomt_nano': (None, {'mIoU': 55}),
    'vitdet-mala_nano': ('model.test_cfg.rcnn.score_thr=0', {BOX: 0.4, MASK: 0.3}),
    'mask2former-semantic_nano': (None, {'mIoU': 50}),
}


@pytest.fixture(scope='module')
def whole_set(tmp_path_factory):
    return shapes.generate(tmp_path_factory.mktemp('whole') / 'shapes', workers=1)


@pytest.mark.long
@pytest.mark.parametrize('name', some(MODELS))
def test_train_test_and_predict(root, run, options, shapes_root, tmp_path, request, name):
    keep, bars = MODELS[name]
    task = 'det' if keep else 'seg'
    config, work = root / f'configs/modern_heads/{name}_shapes.py', tmp_path / 'train'
    changes = [*options(task), *[keep] * (task == 'det')]
    for split, count in (('train', 4), ('val', 1)):
        changes.append(f'{split}_dataloader.dataset.indices={count}')
    if LONG:
        folder = f'{request.getfixturevalue("whole_set")}/{FOLDERS[task]}'
        changes = [f'{s}_dataloader.dataset.data_root={folder}' for s in ('train', 'val', 'test')]
    run('train', config, '--work-dir', work, '--cfg-options', *changes)
    checkpoint = (work / 'last_checkpoint').read_text()
    lines = [json.loads(x) for x in next(work.glob('*/vis_data/scalars.json')).open()]
    assert all(np.isfinite(line['loss']) for line in lines if 'loss' in line)
    found = {score: lines[-1][score] for score in bars}
    if LONG:
        run('test', config, checkpoint, '--work-dir', tmp_path, '--cfg-options', *changes)
        assert all(found[score] > bar for score, bar in bars.items()), found
        assert found == {score: pytest.approx(metrics(tmp_path)[score]) for score in bars}
    picture = shapes_root / 'coco/val2017/000000000001.jpg'
    run('predict', config, checkpoint, picture, '--out', tmp_path / 'found', '--min-score', 0)
    found = json.loads((tmp_path / 'found/predictions.json').read_text())
    assert [image['width'] for image in found['images']] == [64]
