"""The command lines from training to scores, in all three frameworks."""

import json
import pickle

import numpy as np
import pytest
import torch

from mmlinattn.engine.config import load_config

from .conftest import CONFIGS

SCORES = {'seg': 'mIoU', 'det': 'coco/segm_mAP', 'cls': 'accuracy/top1'}


def metrics(work_dir) -> dict:
    newest = max(work_dir.glob('*/*.json'), key=lambda file: file.stat().st_mtime)
    return json.loads(newest.read_text())


def weights(path) -> dict:
    return torch.load(path, weights_only=False)['state_dict']


@pytest.mark.parametrize('task', CONFIGS)
def test_train_then_test(quick, tmp_path, task):
    work, tested = tmp_path / 'train', tmp_path / 'test'
    # Barely trained, a detector is sure of nothing: keep every box.
    keep = ['model.test_cfg.rcnn.score_thr=0'] if task == 'det' else []
    quick('train', task, '--work-dir', work, length=2, cfg=keep)
    checkpoint = (work / 'last_checkpoint').read_text()
    files = ['--out', tmp_path / 'out.pkl', '--show-dir', tmp_path / 'show']
    quick('test', task, checkpoint, '--work-dir', tested, *files, cfg=keep)
    score = metrics(tested)[SCORES[task]]
    assert 0 <= score <= 100
    trained = [json.loads(x) for x in next(work.glob('*/vis_data/scalars.json')).open()]
    assert trained[-1][SCORES[task]] == pytest.approx(score), 'validation while training'
    assert all(np.isfinite(line['loss']) for line in trained if 'loss' in line)
    predictions = pickle.loads((tmp_path / 'out.pkl').read_bytes())
    pictures = [*(tmp_path / 'show').rglob('*.png'), *(tmp_path / 'show').rglob('*.jpg')]
    assert len(pictures) == len(predictions) > 0


def test_views_of_masks_are_refused_before_weights_are_read(quick):
    with pytest.raises(ValueError, match='MaskRCNN predicts masks, and DetTTAModel'):
        quick('test', 'det', 'nowhere.pth', '--tta')


def test_views_of_a_classifier_and_its_average(root, run, options, tmp_path, capsys):
    """The moving average of the weights is scored with the same views; pictures are refused."""
    config, work = tmp_path / 'average.py', tmp_path / 'train'
    hook = "dict(type='ModelEMAHook', momentum=0.1, update_buffers=True)"
    config.write_text(f'_base_ = {str(root / CONFIGS["cls"])!r}\ncustom_hooks = [{hook}]\n')
    run('train', config, '--work-dir', work, '--cfg-options', *options('cls'))
    checkpoint = (work / 'last_checkpoint').read_text()
    arguments = [config, checkpoint, '--tta', '--work-dir', tmp_path / 'test']
    run('test', *arguments, '--cfg-options', *options('cls'))
    assert {'accuracy/top1', 'accuracy/top1_ema'} <= metrics(tmp_path / 'test').keys()
    merged = '(default: a horizontal flip), merged by AverageClsScoreTTA'
    assert merged in capsys.readouterr().out
    with pytest.raises(ValueError, match='MMPretrain draws no views of --tta'):
        run('test', *arguments, '--show-dir', tmp_path, '--cfg-options', *options('cls'))


def test_smca_trains_and_tests(root, run, options, tmp_path):
    pytest.importorskip('mmdet', reason='SMCA needs MMDetection')
    config, work = root / 'configs/smca/smca_nano_shapes.py', tmp_path / 'train'
    run('train', config, '--work-dir', work, '--cfg-options', *options('det'))
    checkpoint = (work / 'last_checkpoint').read_text()
    run('test', config, checkpoint, '--work-dir', tmp_path / 'test', '--cfg-options',
        *options('det'))  # fmt: skip
    lines = [json.loads(x) for x in next(work.glob('*/vis_data/scalars.json')).open()]
    losses = [line for line in lines if 'loss' in line]
    assert {'loss_cls', 'd0.loss_bbox', 'd1.loss_iou'} < losses[-1].keys()
    assert all(np.isfinite(line['loss']) for line in losses)
    assert metrics(tmp_path / 'test')['coco/bbox_mAP'] == lines[-1]['coco/bbox_mAP']


def test_without_the_hook_it_would_not(quick, tmp_path):
    """The comparisons of test_interrupted can fail: without the hook the weights differ."""
    whole, resumed = tmp_path / 'whole', tmp_path / 'resumed'
    cfg = ['default_hooks.checkpoint.interval=2', 'model.backbone.drop_path_rate=0.3']
    quick('train', 'seg', '--work-dir', whole, length=4, cfg=cfg)
    first = ['--resume', whole / 'iter_2.pth']
    quick('train', 'seg', '--work-dir', resumed, *first, length=4, cfg=cfg)
    expected, got = weights(whole / 'iter_4.pth'), weights(resumed / 'iter_4.pth')
    assert any(not torch.equal(expected[name], got[name]) for name in expected)


@pytest.mark.parametrize(
    'task, dtype', [('seg', 'bfloat16'), ('det', 'bfloat16'), ('seg', 'float16')]
)
def test_mixed_precision_on_the_cpu(quick, tmp_path, task, dtype, monkeypatch):
    seen = set()
    linear = torch.nn.functional.linear

    def spy(x, *args):
        out = linear(x, *args)
        seen.add(out.dtype)
        return out

    monkeypatch.setattr(torch.nn.functional, 'linear', spy)
    explicit = ['optim_wrapper.type=AmpOptimWrapper', 'optim_wrapper.dtype=float16']
    quick('train', task, '--amp', length=2, cfg=explicit if dtype == 'float16' else [])
    losses = [json.loads(x) for x in next(tmp_path.glob('*/vis_data/scalars.json')).open()]
    losses = [line['loss'] for line in losses if 'loss' in line]
    assert losses and np.isfinite(losses).all()
    assert seen == {torch.float32, getattr(torch, dtype)}
    final = weights((tmp_path / 'last_checkpoint').read_text())
    assert all(torch.isfinite(value).all() for value in final.values())


def test_synchronised_batch_norm_becomes_plain_and_says_so(quick, tmp_path):
    quick('train', 'seg', cfg=['model.backbone.norm_cfg.type=SyncBN'])
    log = next(tmp_path.glob('*/*.log')).read_text()
    assert log.count('SyncBN becomes BN: there is only one process') == 1


def test_auto_scale_lr(root, quick, tmp_path):
    cfg = ['auto_scale_lr.base_batch_size=16', 'param_scheduler=None']
    quick('train', 'seg', '--auto-scale-lr', cfg=cfg)
    log = next(tmp_path.glob('*/*.log')).read_text()
    assert 'Scaling the original LR by 0.25' in log
    lr = load_config(str(root / CONFIGS['seg'])).optim_wrapper.optimizer.lr
    assert f'lr: {lr / 4:.4e}' in log
