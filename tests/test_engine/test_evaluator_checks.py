"""Options of metrics that the frameworks read after the last image: found before the first one."""

import json
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from mmengine.evaluator import Evaluator
from mmengine.hooks import CheckpointHook
from torch import nn

from mmlinattn.engine.preflight.evaluators import check_evaluator, check_monitor, check_rule

CLASSES = ('circle', 'square', 'triangle')


@pytest.fixture
def annotations(tmp_path):
    """Two images; that with the higher number comes first."""
    images = [dict(id=i, file_name=f'{i}.jpg', height=8, width=8) for i in (7, 3)]
    boxes = [dict(id=1, image_id=3, category_id=1, bbox=[0, 0, 8, 8], area=64, iscrowd=0,
                  segmentation=[[0, 0, 8, 0, 8, 8, 0, 8]])]  # fmt: skip
    categories = [dict(id=i + 1, name=name) for i, name in enumerate(CLASSES)]
    path = tmp_path / 'val.json'
    path.write_text(json.dumps(dict(images=images, annotations=boxes, categories=categories)))
    return str(path)


@pytest.fixture
def check(annotations, capsys):
    """check(metric's framework, model, **options of the metric): its evaluator, checked."""

    def call(scope, model=None, **cfg):
        pytest.importorskip(scope, reason='the metric is of this framework')
        if cfg['type'] == 'CocoMetric':
            cfg = dict(cfg, ann_file=annotations)
        evaluator = Evaluator(dict(cfg, _scope_=scope))
        evaluator.dataset_meta = dict(classes=CLASSES)
        capsys.readouterr()  # of reading annotations
        evaluator.scores = check_evaluator(evaluator, cfg, model or nn.Identity(), 'val_evaluator')
        return evaluator

    return call


GOOD = [
    ('mmseg', dict(type='IoUMetric', iou_metrics=['mIoU', 'mDice', 'mFscore'])),
    ('mmseg', dict(type='IoUMetric', iou_metrics='foo', format_only=True, output_dir='{tmp}')),
    ('mmdet', dict(type='CocoMetric', metric=['bbox', 'segm', 'proposal'])),
    ('mmdet', dict(type='CocoMetric', metric='bbox', metric_items=['mAP', 'mAP_50'])),
    ('mmdet', dict(type='CocoMetric', metric='bbox', classwise=True)),
    ('mmpretrain', dict(type='Accuracy', topk=(1, 3))),
    ('mmpretrain', dict(type='SingleLabelMetric', items=['precision', 'support'], average=None)),
    ('mmpretrain', dict(type='MultiLabelMetric')),  # not known here
]


@pytest.mark.parametrize('scope, cfg', GOOD)
def test_metrics_that_can_score(check, capsys, tmp_path, scope, cfg):
    cfg = {key: str(tmp_path) if value == '{tmp}' else value for key, value in cfg.items()}
    evaluator = check(scope, **cfg)
    (metric,) = evaluator.metrics
    assert metric.results == [] and not [*tmp_path.glob('*.png')]
    assert getattr(metric, 'img_ids', None) is None  # found later: all of them
    assert capsys.readouterr().out == ''


@pytest.mark.parametrize(
    'scope, cfg, scores, others',
    [
        ('mmseg', dict(type='IoUMetric'), ['mIoU', 'aAcc', 'mIoU_best'], ['miou', 'mDice']),
        ('mmdet', dict(type='CocoMetric', metric='bbox'), ['coco/bbox_mAP', 'auto'],
         ['coco/segm_mAP', 'bbox_mAP', 'mIoU']),
        ('mmdet', dict(type='CocoMetric', metric='bbox', prefix='val'), ['val/bbox_mAP'],
         ['coco/bbox_mAP']),
        ('mmpretrain', dict(type='Accuracy'), ['accuracy/top1', 'accuracy/top1_ema'], ['top1']),
        ('mmpretrain', dict(type='MultiLabelMetric'), ['multi-label/f1-score'], ['f1-score']),
        ('mmdet', dict(type='CocoMetric', format_only=True, outfile_prefix='a'), ['coco/x'], ['x']),
    ],
)  # fmt: skip
def test_names_of_scores_are_known_before_work(check, scope, cfg, scores, others):
    found = check(scope, **cfg).scores
    check_monitor('Hook.monitor', scores, found)
    for other in others:
        with pytest.raises(ValueError, match=f"Hook.monitor is '{other}', but the validation sco"):
            check_monitor('Hook.monitor', other, found)


def test_the_first_score_needs_a_rule(check):
    import_module('mmlinattn.projects.vqgan')
    scores = check('mmpretrain', type='mmengine.ReconstructionMetric').scores
    assert [*scores] == [f'reconstruction/{key}' for key in
                         ('psnr', 'ssim', 'code_usage', 'perplexity')]  # fmt: skip
    with pytest.raises(ValueError, match=r'first score, reconstruction/psnr, .*rule='):
        check_rule(CheckpointHook(save_best='auto'), scores)
    accuracy = check('mmpretrain', type='Accuracy').scores
    for options in (dict(save_best='auto', rule='less'), dict(save_best='auto'), dict()):
        check_rule(CheckpointHook(**options), scores if 'rule' in options else accuracy)
    for unknown in ((), [''], ['coco_panoptic/']):
        check_rule(CheckpointHook(save_best='auto'), dict.fromkeys(unknown).keys())


BAD = [
    ('mmseg', dict(type='IoUMetric', iou_metrics='foo'), r"iou_metrics='foo'.*\['foo'\] is not"),
    ('mmseg', dict(type='IoUMetric', iou_metrics=['mIoU', 'mDise']), 'cannot score: metrics'),
    ('mmdet', dict(type='CocoMetric', metric_items=['mAP_60']), 'metric item "mAP_60" is not supp'),
    ('mmpretrain', dict(type='Accuracy', topk=(1, 5)), 'Top-5 accuracy is unavailable since'),
    ('mmpretrain', dict(type='SingleLabelMetric', average='foo'), "average='foo'.* cannot score: "),
]


@pytest.mark.parametrize('scope, cfg, message', BAD)
def test_metrics_that_cannot_score(check, scope, cfg, message):
    with pytest.raises(ValueError, match=rf"val_evaluator \(type='{cfg['type']}', .*{message}"):
        check(scope, **cfg)


def test_masks_of_a_detector_without_masks(check):
    model = nn.Module()
    model.roi_head = SimpleNamespace(with_mask=True)
    check('mmdet', model, type='CocoMetric', metric=['bbox', 'segm'])
    model.roi_head.with_mask = False
    check('mmdet', model, type='CocoMetric', metric='bbox')
    with pytest.raises(ValueError, match='segm is not in results'):
        check('mmdet', model, type='CocoMetric', metric=['bbox', 'segm'])


def test_masks_of_data_without_masks(check, annotations):
    content = json.loads(Path(annotations).read_text())
    (box,) = content['annotations']
    del box['segmentation']
    box['image_id'] = content['images'][0]['id']
    Path(annotations).write_text(json.dumps(content))
    check('mmdet', type='CocoMetric', metric='bbox')
    with pytest.raises(
        ValueError, match="cannot score: the objects have no mask: .* metric='bbox'"
    ):
        check('mmdet', type='CocoMetric', metric=['bbox', 'segm'])


def test_scores_of_classes_whose_ids_do_not_ascend(check, annotations):
    content = json.loads(Path(annotations).read_text())
    content['categories'][0]['id'] = content['annotations'][0]['category_id'] = 42
    Path(annotations).write_text(json.dumps(content))
    options = dict(type='CocoMetric', metric='bbox')
    check('mmdet', **options)
    check('mmdet', **options, classwise=True, sort_categories=True)
    with pytest.raises(ValueError, match=r'val.json the category id 2 follows 42\. List'):
        check('mmdet', **options, classwise=True)


def test_the_number_of_classes_is_that_of_the_model(check):
    model = nn.Module()
    model.head = torch.nn.Linear(1, 1)
    model.head.num_classes = 5
    check('mmpretrain', model, type='Accuracy', topk=5)
    with pytest.raises(ValueError, match='Top-6 accuracy'):
        check('mmpretrain', model, type='Accuracy', topk=6)
