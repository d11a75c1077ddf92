"""Classes, annotation files, heads and metrics that disagree end in one line before training."""

import json
import logging
import shutil
from contextlib import nullcontext

import cv2
import numpy as np
import pytest
from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.logging import MMLogger
from mmengine.registry import DATASETS
from torch import nn

from mmlinattn import __main__ as program
from mmlinattn.datasets import shapes
from mmlinattn.datasets.audit.coco import check_classes, read_categories
from mmlinattn.engine.preflight import dataset_audit
from mmlinattn.engine.preflight.classes import check_heads, check_names
from mmlinattn.engine.preflight.data import DataError, labels_of
from mmlinattn.engine.preflight.dataset_audit import audit_dataset, check_maps, warn_of_records
from mmlinattn.engine.preflight.evaluators import check_scored_file
from mmlinattn.engine.preflight.run import check_run
from mmlinattn.engine.runner.runner import PluginRunner
from tests.families import shrunk

COCO = 'coco/annotations/instances_train2017.json'


@pytest.fixture
def root(tmp_path):
    return shapes.generate(tmp_path / 'shapes', num_train=3, num_val=2, image_size=64, workers=1)


@pytest.fixture
def said(monkeypatch):
    """Lines of the log."""
    lines = []
    logger = MMLogger.get_current_instance()

    def handle(record):
        if record.levelno >= logging.INFO and 'scope' not in record.getMessage():
            lines.append(record.getMessage())

    monkeypatch.setattr(logger, 'handle', handle)
    return lines


def change(path, function):
    content = json.loads(path.read_text())
    function(content)
    path.write_text(json.dumps(content))


# Of the five classes circle, square, triangle, star, cross.
NAMES = {
    'another order': (
        ('square', 'circle', 'triangle', 'star', 'cross'),
        r"in another order, 'circle', 'square', .*: 'circle' would be called 'square'\. "
        r"Set metainfo=dict\(classes=\('circle', 'square', 'triangle', 'star', 'cross'\)\)",
    ),
    'a subset in another order': (
        ('star', 'circle'),
        r"'circle' would be called 'star'\. Set metainfo=dict\(classes=\('circle', 'star'\)\)",
    ),
    'a name that is not there': (
        ('circle', 'Square', 'star'),
        r"lacks 'Square', 1 of the 3 classes .* it has 'circle', 'square', 'triangle', ",
    ),
    'no name': (
        ('bolt', 'nut'),
        "lacks 'bolt', 'nut', 2 of the 2 classes|classes=.*must name those of the",
    ),
    'a name twice': (('star', 'star'), 'has a name twice'),
    'one class without its comma': ('circle', r"the text 'circle'.* classes=\('circle',\)"),
}


@pytest.mark.parametrize('case', NAMES)
def test_names_that_are_not_those_of_the_file(root, case):
    classes, message = NAMES[case]
    cfg = shrunk('ravlt-retinanet', root)
    cfg.train_dataloader.dataset.metainfo = dict(classes=classes)
    for check in (lambda: check_run(cfg, 'train'),
                  lambda: PluginRunner.build_dataloader(cfg.train_dataloader)):  # fmt: skip
        with pytest.raises(DataError, match=message):
            check()


def test_the_labels_would_be_wrong(root):
    """MMDetection numbers by the file: the check must not refuse what trains right names."""
    dataset = shrunk('ravlt-retinanet', root).train_dataloader.dataset
    wrong = DATASETS.build(dict(dataset, metainfo=dict(classes=('star', 'circle'))))
    content = json.loads((root / COCO).read_text())
    names = {category['id']: category['name'] for category in content['categories']}
    assert [names[i] for i in wrong.cat_ids] == ['circle', 'star']
    check_names(DATASETS.build(dict(dataset, metainfo=dict(classes=('circle', 'star')))))


def test_the_old_name_of_the_option(root):
    cfg = shrunk('ravlt-retinanet', root)
    cfg.train_dataloader.dataset.metainfo = dict(CLASSES=('circle',))
    with pytest.raises(DataError, match=r'reads metainfo\.classes, not metainfo\.CLASSES'):
        check_run(cfg, 'train')


def test_classes_that_a_segmentation_set_does_not_have(root):
    cfg = shrunk('ravlt-semantic-fpn', root)
    cfg.train_dataloader.dataset.update(type='ADE20KDataset', metainfo=dict(classes=('bolt',)))
    with pytest.raises(DataError, match=r"ADE20KDataset, which lacks .*'bolt'.*BaseSegDataset"):
        check_run(cfg, 'train')


def test_folders_in_another_order(tmp_path):
    pytest.importorskip('mmpretrain', reason='the data set is of this framework')
    for name in ('cat', 'dog'):
        (tmp_path / name).mkdir()
        cv2.imwrite(str(tmp_path / name / '0.png'), np.zeros((4, 4, 3), np.uint8))

    def loaded(**options):
        cfg = dict(type='mmpretrain.CustomDataset', data_prefix=str(tmp_path), **options)
        check_names(DATASETS.build(cfg))

    loaded()
    loaded(classes=['cat', 'dog'])
    loaded(classes=['tabby', 'hound'])  # other names for the same folders
    with pytest.raises(DataError, match=r"in the order \('cat', 'dog'\), so \('dog', 'cat'\)"):
        loaded(classes=['dog', 'cat'])


@pytest.mark.parametrize('spaces', [None, 1])
@pytest.mark.parametrize('encoding', ['utf-8', 'utf-16'])
def test_categories_are_found_without_reading_all(spaces, encoding):
    wanted = [dict(id=i, name=f'wheel "{i}" ä') for i in range(30)]
    content = dict(info=dict(categories='none'), categories=wanted, images=[dict(id=1)] * 9)
    text = json.dumps(content, indent=spaces, ensure_ascii=False)
    assert read_categories(text.encode(encoding)) == wanted
    # Two lists of this name: only the whole file tells which is meant.
    nested = dict(annotations=[dict(categories=[dict(id=1, name='x')])], categories=wanted)
    assert read_categories(json.dumps(nested).encode()) == wanted
    with pytest.raises(ValueError, match='no list of categories'):
        read_categories(b'{"images": []}')
    assert [*check_classes(wanted, [each['name'] for each in wanted])] == []


class Head(nn.Module):
    def __init__(self, num_classes, **options):
        super().__init__()
        self.num_classes = num_classes
        self.__dict__.update(options)


def model_with(**heads):
    model = nn.Module()
    for name, head in heads.items():
        part = model
        *places, last = name.split('__')
        for place in places:
            part = getattr(part, place, None) or (setattr(part, place, nn.Module())
                                                  or getattr(part, place))  # fmt: skip
        setattr(part, last, head)
    return model


THREE = dict(classes=('bolt', 'nut', 'washer'))
PANOPTIC = dict(THREE, thing_classes=('bolt', 'nut'))


@pytest.mark.parametrize(
    'heads, metainfo',
    [
        (dict(bbox_head=Head(3), rpn_head=Head(1)), THREE),
        (
            dict(roi_head__bbox_head=nn.ModuleList([Head(3)] * 3), roi_head__mask_head=Head(3)),
            THREE,
        ),
        (dict(roi_head__mask_head=Head(80, class_agnostic=True)), THREE),
        (dict(roi_head__semantic_head=Head(183), bbox_head=Head(3)), THREE),
        (dict(roi_head__bbox_head=Head(2), panoptic_head=Head(3)), PANOPTIC),
        (dict(decode_head=Head(1), auxiliary_head=Head(2)), dict(classes=('no', 'yes'))),
        (dict(decode_head=Head(3), backbone=Head(1000)), THREE),
        (dict(bbox_head=Head(256), language_model=nn.Identity()), THREE),
        (dict(head=Head(7)), dict(classes=None)),
    ],
)
def test_heads_that_fit(heads, metainfo):
    check_heads(model_with(**heads), metainfo, 'train_dataloader')


@pytest.mark.parametrize(
    'heads, metainfo, message',
    [
        (dict(bbox_head=Head(80)), THREE, r"model\.bbox_head\.num_classes is 80, but .* has 3 "
         r"classes \('bolt', 'nut', 'washer'\): set model\.bbox_head\.num_classes=3"),
        (dict(roi_head__bbox_head=Head(3), roi_head__mask_head=Head(80)), THREE,
         r'^model\.roi_head\.mask_head\.num_classes is 80, but'),
        (dict(roi_head__bbox_head=nn.ModuleList([Head(3), Head(2)])), THREE,
         r'^model\.roi_head\.bbox_head\.1\.num_classes is 2, but'),
        (dict(decode_head=Head(3), auxiliary_head=nn.ModuleList([Head(19)])), THREE,
         r'^model\.auxiliary_head\.0\.num_classes is 19'),
        (dict(decode_head=Head(1)), THREE, 'decode_head.num_classes is 1'),
        (dict(head=Head(2)), THREE, 'model.head.num_classes is 2'),
        (dict(bbox_head=Head(3)), PANOPTIC, r'bbox_head\.num_classes=2'),
    ],
)  # fmt: skip
def test_heads_that_do_not_fit(heads, metainfo, message):
    with pytest.raises(DataError, match=message):
        check_heads(model_with(**heads), metainfo, 'train_dataloader')


@pytest.mark.parametrize(
    'losses, wrong',
    [
        (Head(0, class_weight=[1.0] * 11), 'loss_decode.class_weight has 11 weights'),
        (
            nn.ModuleList([Head(0, class_weight=[1.0] * 3), Head(0, class_weight=(1, 2))]),
            'loss_decode.1.class_weight has 2 weights',
        ),
    ],
)
def test_class_weights_of_a_segmentor(losses, wrong):
    model = model_with(decode_head=Head(3, loss_decode=losses))
    message = (
        rf'^model\.decode_head\.{wrong}, but the head has 3 outputs: give one for each, or set'
    )
    with pytest.raises(DataError, match=message):
        check_heads(model, THREE, 'x')
    for good in ([1.0] * 3, None):
        head = Head(3, loss_decode=Head(0, class_weight=good))
        check_heads(model_with(decode_head=head), THREE, 'x')


def test_the_class_weight_of_a_single_output():
    """It weighs the second of two classes; MMSegmentation fails with two of them."""
    for weights, fits in (([3.0], True), ([1.0, 3.0], False)):
        head = Head(2, out_channels=1, loss_decode=Head(0, class_weight=weights))
        refused = nullcontext() if fits else pytest.raises(DataError, match='head has 1 outputs')
        with refused:
            check_heads(model_with(decode_head=head), dict(classes=('no', 'yes')), 'x')


def test_a_classifier_with_more_outputs_is_said(said):
    check_heads(model_with(head=Head(1000)), THREE, 'train_dataloader')
    assert said == ['model.head has 1000 outputs for the 3 classes of train_dataloader']


def test_every_road_compares_heads(root, tmp_path, capsys):
    cfg = shrunk('ravlt-mask-rcnn', root)
    cfg.model.roi_head.mask_head.num_classes = 80
    cfg.work_dir = str(tmp_path / 'work')
    message = r'^model\.roi_head\.mask_head\.num_classes is 80, but the data set of {}_dataloader'
    with pytest.raises(DataError, match=message.format('train')):
        check_run(cfg, 'train', 'val')
    path = tmp_path / 'mine.py'
    cfg.dump(str(path))
    with pytest.raises(SystemExit):
        program.main(['train', str(path), '--work-dir', cfg.work_dir])
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and 'mask_head.num_classes=5, or metainfo.classes' in lines[0]
    assert not (tmp_path / 'work').exists()
    runner = PluginRunner.from_cfg(cfg)
    for split, loop in (('train', 'train_loop'), ('val', 'val_loop')):
        with pytest.raises(DataError, match=message.format(split)):
            getattr(runner, loop)


def test_a_metric_that_reads_another_file(root):
    cfg = shrunk('ravlt-retinanet', root)
    check_scored_file(cfg, 'val')
    own = cfg.val_evaluator.ann_file
    copied = root / 'copied.json'
    shutil.copy(own, copied)
    cfg.val_evaluator.ann_file = str(copied)
    check_scored_file(cfg, 'val')  # the same images
    cfg.val_evaluator.ann_file = str(root / COCO)
    message = rf"^val_evaluator\.ann_file is '{root / COCO}', which lacks 2 of the 2 images .*" \
              rf"such as '000000000001\.jpg'.*: set val_evaluator\.ann_file='{own}'"  # fmt: skip
    for check in (lambda: check_run(cfg, 'val'),
                  lambda: PluginRunner.from_cfg(Config(dict(cfg))).val_loop):  # fmt: skip
        cfg.work_dir = str(root)
        with pytest.raises(DataError, match=message):
            check()
    cfg.val_evaluator = [cfg.val_evaluator]
    with pytest.raises(DataError, match=r'^val_evaluator\[0\]\.ann_file is'):
        check_scored_file(cfg, 'val')
    cfg.val_evaluator.append(dict(type='CocoMetric', ann_file=own))  # as panoptic models have
    check_scored_file(cfg, 'val')


def segmentation(root, monkeypatch, label, reduce_zero_label=False):
    """A loaded training set of which all maps have this label, and the labels of its model."""
    cfg = shrunk('segformer', root)
    for path in root.rglob('*_labelTrainIds.png'):
        seg_map = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
        seg_map[:9] = 0
        seg_map[9:] = label
        cv2.imwrite(str(path), seg_map)
    dataset = dict(cfg.train_dataloader.dataset, reduce_zero_label=reduce_zero_label)
    return DATASETS.build(dataset), labels_of(cfg.model)


def test_maps_with_labels_that_the_model_lacks(root, monkeypatch):
    number = segmentation(root, monkeypatch, 1)[1].number
    check_maps(*segmentation(root, monkeypatch, number - 1))
    message = rf'has labels \[{number}\], known are 0 to {number - 1}; .* set reduce_zero_label'
    with pytest.raises(DataError, match=message):
        check_maps(*segmentation(root, monkeypatch, number))
    check_maps(*segmentation(root, monkeypatch, number, reduce_zero_label=True))
    with pytest.raises(DataError, match=rf'has labels \[77\], known are 0 to {number - 1}$'):
        check_maps(*segmentation(root, monkeypatch, 77))


def test_masks_of_0_and_255(root, monkeypatch, said):
    check_maps(*segmentation(root, monkeypatch, 255))
    assert len(said) == 1 and 'have the labels 0 and 255 only, and 255 is ignored' in said[0]


def test_records_with_problems_are_said_once(root, said, monkeypatch):
    cfg = shrunk('ravlt-retinanet', root)
    warn_of_records(cfg, 'train', 'val')
    assert said == []

    def spoil(content):
        for annotation in content['annotations'][:2]:
            annotation['bbox'][2] = 0

    change(root / COCO, spoil)
    warn_of_records(cfg, 'train', 'val')
    assert len(said) == 1 and "2 of 'box without extent'; the first: annotation 1: bbox" in said[0]
    monkeypatch.setattr(dataset_audit, 'MAX_BYTES', 100)
    warn_of_records(cfg, 'train', 'val')
    assert len(said) == 1


def test_a_data_set_that_is_not_of_mmengine(root):
    class Plain:
        def __init__(self, ann_file):
            self.ann_file = ann_file

    DATASETS.register_module(module=Plain, force=True)
    cfg = shrunk('ravlt-retinanet', root)
    cfg.train_dataloader.dataset = dict(type='Plain', ann_file=str(root / COCO))
    check_run(cfg, 'train')
    assert not issubclass(Plain, BaseDataset)


def test_a_data_set_without_an_image(root):
    cfg = shrunk('segformer', root)
    cfg.train_dataloader.dataset.img_suffix = '.tiff'
    with pytest.raises(DataError, match=r"no image whose name ends in '\.tiff' \(img_suffix of "):
        audit_dataset(cfg, ['train'])


def test_splits_of_the_same_files(root):
    cfg = shrunk('segformer', root)
    cfg.test_dataloader.dataset.pipeline = cfg.test_dataloader.dataset.pipeline[:-1]
    report = audit_dataset(cfg)
    assert report.images == dict(train=3, val=2) and report.same == dict(test='val')
    assert report.counts() == {}
    cfg.val_dataloader.dataset = cfg.train_dataloader.dataset
    report = audit_dataset(cfg, ['train', 'val'])
    assert report.same == dict(val='train') and report.counts() == {('val', 'duplicate'): 1}
