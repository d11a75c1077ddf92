"""Classes, annotation files, heads and metrics that disagree end in one line before training."""

import copy
import json
import re
import shutil
from contextlib import nullcontext

import pytest
from mmengine import fileio
from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS, MODELS
from torch import nn

from mmlinattn import __main__ as program
from mmlinattn.datasets import shapes
from mmlinattn.engine.model import number_of_classes
from mmlinattn.engine.preflight import weights
from mmlinattn.engine.preflight.classes import check_heads, check_names, check_padding
from mmlinattn.engine.preflight.data import DataError
from mmlinattn.engine.preflight.run import check_run
from mmlinattn.engine.preflight.weights import _check_classes
from tests.families import shrunk

COCO = 'coco/annotations/instances_train2017.json'
VAL = 'coco/annotations/instances_val2017.json'


@pytest.fixture
def root(tmp_path):
    return shapes.generate(tmp_path / 'shapes', num_train=3, num_val=2, image_size=64)


def change(path, function):
    content = json.loads(path.read_text())
    function(content)
    path.write_text(json.dumps(content))


def refused(message, cfg, *splits):
    with pytest.raises(DataError, match=message):
        check_run(cfg, *splits)


# Of the five classes circle, square, triangle, star, cross.
NAMES = {
    'another order': (
        ('square', 'circle', 'triangle', 'star', 'cross'),
        r"label 0 is 'circle', but 'square' in metainfo\.classes.* "
        r"Set metainfo=dict\(classes=\('circle', 'square', 'triangle', 'star', 'cross'\)\)",
    ),
    'a name that is not there': (
        ('circle', 'Square', 'star'),
        r"label 1 is 'star', but 'Square' in .* Set metainfo=dict\(classes=\('circle', 'square', ",
    ),
    'a name twice': (('star', 'star'), "label 1 is missing, but 'star'"),
    'one class without its comma': ('circle', r"the text 'circle'.* classes=\('circle',\)"),
}


@pytest.mark.parametrize('case', NAMES)
def test_names_that_are_not_those_of_the_file(root, case):
    classes, message = NAMES[case]
    cfg = shrunk('ravlt-retinanet', root)
    cfg.train_dataloader.dataset.metainfo = dict(classes=classes)
    refused(message, cfg, 'train')


def test_the_labels_would_be_wrong(root):
    """MMDetection numbers by the file: the check must not refuse what trains right names."""
    dataset = shrunk('ravlt-retinanet', root).train_dataloader.dataset
    wrong = DATASETS.build(dict(dataset, metainfo=dict(classes=('star', 'circle'))))
    content = json.loads((root / COCO).read_text())
    names = {category['id']: category['name'] for category in content['categories']}
    assert [names[i] for i in wrong.cat_ids] == ['circle', 'star']
    right = DATASETS.build(dict(dataset, metainfo=dict(classes=('circle', 'star'))))
    assert not [*check_names(right, content['categories'])]


@pytest.mark.parametrize(
    'change_categories, message',
    [
        (lambda c: c.pop(1), "label 1 is 'triangle', but 'square' in metainfo.classes"),
        (lambda c: c.append(dict(c[1], id=9)), "the category 'square' is there twice: keep one"),
        (lambda c: c.clear(), r'categories: must be a list with at least one record, got \[\]'),
    ],
)
def test_categories_that_are_missing_or_there_twice(root, change_categories, message):
    """Those behind one would get labels of other classes."""
    change(root / COCO, lambda content: change_categories(content['categories']))
    refused(f'{root / COCO}: {message}', shrunk('ravlt-retinanet', root), 'train')


def test_the_old_name_of_the_option(root):
    cfg = shrunk('ravlt-retinanet', root)
    cfg.train_dataloader.dataset.metainfo = dict(CLASSES=('circle',))
    refused(r'reads metainfo\.classes, not metainfo\.CLASSES', cfg, 'train')


def test_classes_that_a_segmentation_set_does_not_have(root):
    cfg = shrunk('ravlt-semantic-fpn', root)
    cfg.train_dataloader.dataset.update(type='ADE20KDataset', metainfo=dict(classes=('bolt',)))
    refused(r"ADE20KDataset, which lacks .*'bolt'.*BaseSegDataset", cfg, 'train')


@pytest.mark.parametrize('named', [True, False])
def test_classes_inside_a_file_in_the_format_of_mmengine(root, named):
    """They number the labels; classes of the config replace their names without a word."""
    cfg, known = shrunk('ravlt-nano-cls', root), list(shapes.CLASSES)
    cfg.model.head.type = 'MultiLabelLinearClsHead'
    for split, classes in (('train', known), ('val', known[::-1])):
        records = [dict(img_path='circle/0.jpg', gt_label=[0])]
        content = dict(metainfo=dict(classes=classes), data_list=records)
        (root / f'{split}.json').write_text(json.dumps(content))
        dataset = dict(type='MultiLabelDataset', data_root=str(root), ann_file=f'{split}.json')
        metainfo = dict(classes=known) if named else {}
        cfg[f'{split}_dataloader'].dataset = dict(dataset, metainfo=metainfo, pipeline=[])
    check_run(cfg, 'train')
    message = "val_dataloader: label 0 is 'circle', but 'cross' here: both need the same classes"
    if named:
        cfg.train_dataloader.dataset.metainfo = dict(classes=[name.title() for name in known])
        check_run(cfg, 'train')  # other names of the same labels
        message = "val.json: label 0 is 'cross', but 'circle' in metainfo.classes: the labels are "
    refused(message, cfg, 'train', 'val')


def test_splits_with_the_classes_in_another_order(root):
    """Each of both data sets agrees with its own file."""
    cfg = shrunk('ravlt-retinanet', root)
    change(root / VAL, lambda content: content['categories'].reverse())
    names = shapes.CLASSES[::-1]
    cfg.val_dataloader.dataset.metainfo = dict(classes=names)
    check_run(cfg, 'val')
    message = r"^val_dataloader: label 0 is 'circle', but 'cross' here: .* as train_dataloader"
    refused(message, cfg, 'train', 'val')


@pytest.mark.parametrize(
    'change_folder, options, message',
    [
        (lambda f: shutil.rmtree(f / 'square'), {}, "label 1 is 'square', but 'star' here"),
        (lambda f: (f / 'star').rename(f / 'Star'), {}, "label 0 is 'circle', but 'Star' here"),
        (lambda f: (f / '.ipynb_checkpoints').mkdir(), {}, r'_checkpoints: is a hidden folder'),
        (
            lambda f: (f / 'star').rename(f / 'Star'),
            dict(metainfo=dict(classes=('circle', 'square', 'star'))),
            r"val: label 0 is 'Star', but 'circle' in .* numbered by the folders. Rename them",
        ),
        (
            lambda f: None,
            dict(metainfo=dict(classes=('square', 'circle', 'star'))),
            r"by the folders. Set metainfo=dict\(classes=\('circle', 'square', 'star'\)\)",
        ),
    ],
)
def test_folders_that_number_other_classes(tmp_path, change_folder, options, message):
    pytest.importorskip('mmpretrain', reason='the data set is of this framework')
    cfg = Config(dict())
    for split in ('train', 'val'):
        for name in ('circle', 'square', 'star'):
            (tmp_path / split / name).mkdir(parents=True)
        cfg[f'{split}_dataloader'] = dict(
            dataset=dict(
                type='mmpretrain.CustomDataset', data_root='', data_prefix=str(tmp_path / split)
            )
        )
    check_run(cfg, 'train', 'val')
    dataset = cfg.val_dataloader.dataset
    dataset.metainfo = dict(classes=('round', 'corners', 'rays'))  # names for the same folders
    check_run(cfg, 'train', 'val')
    dataset.pop('metainfo')
    dataset.update(options)
    change_folder(tmp_path / 'val')
    refused(message, cfg, 'train', 'val')


@pytest.mark.parametrize(
    'names, message',
    [
        ('bcd', None),
        ('bc', None),  # no label moves
        ('bcdz', None),
        ('bcx', None),
        ('bd', "label 1 is 'c', but 'd' here"),
        ('abcd', "label 0 is 'b', but 'a' here"),
        ('xyz', None),  # the checkpoint has other names for them
    ],
)
def test_folders_of_a_checkpoint(tmp_path, monkeypatch, names, message):
    pytest.importorskip('mmpretrain', reason='the data set is of this framework')
    for name in names:
        (tmp_path / name).mkdir()
    dataset = dict(type='mmpretrain.CustomDataset', data_root='', data_prefix=str(tmp_path))
    cfg = Config(dict(load_from='a.pth', test_dataloader=dict(dataset=dataset)))
    meta = dict(dataset_meta=dict(classes=tuple('bcd')))
    with pytest.raises(DataError, match=message) if message else nullcontext():
        _check_classes(cfg, meta, 'test', True)
    said = []
    monkeypatch.setattr(weights, 'log_warning', said.append)
    _check_classes(cfg, meta, 'test', False)  # a head of another size starts anew
    assert not said or len(names) == len('bcd')


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
        (dict(bbox_head=Head(1), head=Head(1)), dict(classes=('road',))),
        (dict(bbox_head=Head(256), language_model=nn.Identity()), THREE),
        (dict(head=Head(7)), dict(classes=None)),
    ],
)
def test_heads_that_fit(heads, metainfo):
    assert not [*check_heads(model_with(**heads), metainfo, 'train_dataloader')]


@pytest.mark.parametrize(
    'heads, metainfo, message',
    [
        (dict(bbox_head=Head(80)), THREE, r"^model\.bbox_head\.num_classes is 80, but .* has 3 "
         r"classes \('bolt', 'nut', 'washer'\): set model\.bbox_head\.num_classes=3"),
        (dict(roi_head__bbox_head=Head(3), roi_head__mask_head=Head(80)), THREE,
         r'^model\.roi_head\.mask_head\.num_classes is 80, but'),
        (dict(decode_head=Head(3), auxiliary_head=nn.ModuleList([Head(19)])), THREE,
         r'^model\.auxiliary_head\.0\.num_classes is 19'),
        (dict(head=Head(2)), THREE, 'model.head.num_classes is 2'),
        (dict(bbox_head=Head(3)), PANOPTIC, r'bbox_head\.num_classes=2'),
        (dict(decode_head=Head(1, loss_decode=Head(0, use_sigmoid=True))), dict(classes=('road',)),
         r"^model\.decode_head predicts two labels.*\.classes=\('background', 'road'\)$"),
        (dict(decode_head=Head(2)), dict(classes=('road',), reduce_zero_label=True),
         r"\('background', 'road'\) and reduce_zero_label=False$"),
        # A softmax of one output is 1 everywhere.
        (dict(auxiliary_head=Head(1, loss_decode=Head(0, use_sigmoid=False))),
         dict(classes=('road',)), r"'road'\) and model\.auxiliary_head\.num_classes=2$"),
    ],
)  # fmt: skip
def test_heads_that_do_not_fit(heads, metainfo, message):
    (found,) = check_heads(model_with(**heads), metainfo, 'train_dataloader')
    assert re.search(message, found.what) and found.fatal


def test_heads_of_a_cascade_are_named_as_in_the_config():
    """It makes its mask heads from one dict."""
    boxes, masks = nn.ModuleList([Head(80), Head(3)]), nn.ModuleList([Head(80), Head(80)])
    model = model_with(roi_head__bbox_head=boxes, roi_head__mask_head=masks)
    config = dict(roi_head=dict(bbox_head=[dict(), dict()], mask_head=dict(num_classes=80)))
    (found,) = check_heads(model, THREE, 'x', config)
    options = 'model.roi_head.bbox_head.0.num_classes=3, model.roi_head.mask_head.num_classes=3'
    assert f': set {options}, or' in found.what


COUNTS = ('num_things_classes', 'num_stuff_classes')
STALE = dict(THREE, thing_classes=('person', 'bicycle'), stuff_classes=('banner',))  # of COCO
SPLIT = dict(PANOPTIC, stuff_classes=('banner', 'blanket'))


@pytest.mark.parametrize('metainfo, right', [(THREE, (3, 0)), (SPLIT, (2, 1)), (STALE, (3, 0))])
@pytest.mark.parametrize('wrong', ['panoptic_head', 'panoptic_fusion_head', None])
def test_heads_that_count_things_and_stuff_apart(metainfo, right, wrong):
    """MMDetection ignores an option ``num_classes`` of these."""
    heads = {}
    for name in ('panoptic_head', 'panoptic_fusion_head'):
        counts = (80, 53) if name == wrong else right
        heads[name] = Head(sum(counts), **dict(zip(COUNTS, counts)))
    found = [each.what for each in check_heads(model_with(**heads), metainfo, 'x')]
    cure = ', '.join(f'model.{wrong}.{name}={n}' for name, n in zip(COUNTS, right))
    assert len(found) == bool(wrong) and all(f': set {cure}, or' in each for each in found)


def test_stuff_that_a_data_set_does_not_name():
    fusion = Head(3, num_things_classes=2, num_stuff_classes=1)
    for metainfo in (THREE, STALE):
        assert not [*check_heads(model_with(panoptic_fusion_head=fusion), metainfo, 'x')]


def test_a_head_of_mmpretrain_that_keeps_no_number():
    pytest.importorskip('mmpretrain.models', reason='the head is of MMPretrain')
    config = dict(type='mmpretrain.CSRAClsHead', num_classes=5, in_channels=8, num_heads=1, lam=0.1)
    (found,) = check_heads(model_with(head=MODELS.build(config)), dict(classes=[*'abcdef']), 'x')
    assert 'model.head.num_classes is 5' in found.what


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
    (found,) = check_heads(model, THREE, 'x')
    text = f'{found.where} {found.what}'
    assert text.startswith(f'model.decode_head.{wrong}, but the head has 3 outputs: give one')
    for good in ([1.0] * 3, None):
        head = Head(3, loss_decode=Head(0, class_weight=good))
        assert not [*check_heads(model_with(decode_head=head), THREE, 'x')]


def test_a_single_output_has_two_classes():
    """The predictions name both."""
    assert number_of_classes(model_with(decode_head=Head(1))) == 2
    assert number_of_classes(model_with(bbox_head=Head(1))) == 1


@pytest.mark.parametrize('weights, count', [([3.0], 0), ([1.0, 3.0], 1)])
def test_the_class_weight_of_a_single_output(weights, count):
    """It weighs the second of two classes; MMSegmentation fails with two of them."""
    head = Head(2, out_channels=1, loss_decode=Head(0, class_weight=weights))
    found = [*check_heads(model_with(decode_head=head), dict(classes=('no', 'yes')), 'x')]
    assert len(found) == count and all('head has 1 outputs' in each.what for each in found)


def test_a_classifier_with_more_outputs_is_said():
    (found,) = check_heads(model_with(head=Head(1000)), THREE, 'train_dataloader')
    assert found.where == 'model.head.num_classes'
    assert found.what.startswith('is 1000, but train_dataloader has 3 classes: set model.head.num')
    assert not found.fatal


@pytest.mark.parametrize(
    'outputs, labels, where, options',
    [
        (3, 3, 'train_dataloader', ''),
        (1000, 1000, 'train_dataloader', ''),
        (3, None, 'train_dataloader', ''),
        (3, 100, 'test_dataloader', ''),
        (3, 100, 'train_dataloader', 'data_preprocessor.num_classes=3'),
        (1000, 3, 'train_dataloader', 'data_preprocessor.num_classes=1000'),
        (2, 2, 'train_dataloader', 'model.head.num_classes=3, data_preprocessor.num_classes=3'),
    ],
)
def test_one_hot_labels_have_the_classes_of_the_head(outputs, labels, where, options):
    model = model_with(head=Head(outputs), data_preprocessor=Head(labels, to_onehot=True))
    found = [each.what for each in check_heads(model, THREE, where) if each.fatal]
    assert len(found) == bool(options) and all(f': set {options}, or' in each for each in found)
    config = dict(data_preprocessor=dict(num_classes=labels))
    moved = [each.what for each in check_heads(model, THREE, where, config) if each.fatal]
    assert moved == [each.replace('data_pre', 'model.data_pre') for each in found]
    model.data_preprocessor.to_onehot = False
    assert not any('preprocessor' in each.what for each in check_heads(model, THREE, where))


def test_a_data_preprocessor_beside_the_model_is_checked(root):
    cfg = shrunk('ravlt-nano-cls', root)
    cfg.model.train_cfg = dict(augments=[dict(type='Mixup', alpha=0.8)])
    cfg.data_preprocessor = dict(cfg.model.pop('data_preprocessor'), num_classes=100)
    refused(r'data_preprocessor\.num_classes is 100, but .* 5 classes', cfg, 'train')


def test_a_command_compares_heads(root, tmp_path, error_of):
    cfg = shrunk('ravlt-mask-rcnn', root)
    cfg.model.roi_head.mask_head.num_classes = 80
    cfg.work_dir = str(tmp_path / 'work')
    path = tmp_path / 'mine.py'
    cfg.dump(str(path))
    error = error_of(program.main, ['train', str(path), '--work-dir', cfg.work_dir])
    assert 'mask_head.num_classes=5, or metainfo.classes' in error
    assert not (tmp_path / 'work').exists()


def test_a_metric_that_reads_another_file(root):
    cfg = shrunk('ravlt-retinanet', root)
    own = cfg.val_evaluator.ann_file
    shutil.copy(own, root / 'copied.json')
    cfg.val_evaluator.ann_file = str(root / 'copied.json')
    check_run(cfg, 'val')  # the same images
    change(root / 'copied.json', lambda content: content['annotations'][0].update(bbox='1 2'))
    refused("copied.json: annotation 1: bbox is '1 2'", cfg, 'val')
    (root / 'copied.json').write_bytes(b'\xef\xbb\xbf')
    refused("copied.json' cannot be read: .* byte-order mark", cfg, 'val')
    cfg.val_evaluator.ann_file = str(root / COCO)
    message = rf"is '{root / COCO}', which lacks 2 of the 2 images .*such as '000000000001\.jpg'" \
              rf".*: set val_evaluator\.ann_file='{own}'"  # fmt: skip
    refused(rf'^val_evaluator\.ann_file: {message}', cfg, 'val')
    cfg.val_evaluator = [cfg.val_evaluator]
    refused(r'^val_evaluator\[0\]\.ann_file: is', cfg, 'val')
    cfg.val_evaluator.append(dict(type='CocoMetric', ann_file=own))  # as panoptic models have
    check_run(cfg, 'val')


@pytest.mark.parametrize('cascade', [False, True])
def test_a_metric_that_ignores_another_label_than_the_head(root, cascade):
    cfg = shrunk('segformer', root)
    cfg.val_evaluator.ignore_index = 0  # a class that is left out of the scores
    assert not check_run(cfg, 'val')
    del cfg.val_evaluator.ignore_index
    assert not check_run(cfg, 'val')
    head = cfg.model.decode_head
    if cascade:
        cfg.model.update(type='CascadeEncoderDecoder', num_stages=2)
        point = dict(head, type='PointHead', in_channels=[16], in_index=[0], ignore_index=200)
        cfg.model.decode_head = [head, point]
        cfg.model.test_cfg.update(subdivision_steps=1, subdivision_num_points=16, scale_factor=2)
    else:
        head.ignore_index = 200
    message = r'^val_evaluator(\[1\])?\.ignore_index: is 255, but model\.decode_head\.ignore_index '
    message += r'is 200: .* Set val_evaluator(\[1\])?\.ignore_index=200$'
    refused(message, cfg, 'val')
    cfg.val_evaluator.ignore_index = 200
    check_run(cfg, 'val')
    if not cascade:
        cfg.val_evaluator.ignore_index, head.ignore_index = 255, -100  # torch's: none is ignored
        (line,) = check_run(cfg, 'train', 'val')
        assert 'padded pixels would end the training. Set' in line
        cfg.val_evaluator.ignore_index = head.ignore_index = 200
    cfg.val_evaluator = [cfg.val_evaluator, dict(type='BoundaryIoUMetric')]
    refused(message, cfg, 'val')
    cfg.val_evaluator[1] = dict(type='IoUMetric', format_only=True)  # has no scores
    check_run(cfg, 'val')
    (cfg.model.decode_head[1] if cascade else head).ignore_index = 0  # a class that is not trained
    cfg.val_evaluator = dict(type='IoUMetric', iou_metrics=['mIoU'])
    (warning,) = check_run(cfg, 'val')
    assert 'is 0: pixels that are not trained would count in the scores' in warning


def test_padding_that_is_not_ignored(root):
    cfg = shrunk('ravlt-upernet', root)
    check_run(cfg, 'train')
    cfg.model.decode_head.ignore_index = 200
    message = r'seg_pad_val: is 255, but model.decode_head.ignore_index is 200: .*seg_pad_val=200$'
    refused(rf'^model.data_preprocessor.{message}', cfg, 'train')
    cfg.val_evaluator.ignore_index = 200
    check_run(cfg, 'val')  # nothing is padded with labels
    cfg.model.data_preprocessor.seg_pad_val = 200
    refused('is 200, .* Set model.auxiliary_head.ignore_index=200$', cfg, 'train')
    cfg.model.auxiliary_head.ignore_index = 200
    check_run(cfg, 'train')
    cfg.model.data_preprocessor.seg_pad_val = 0
    (warning,) = check_run(cfg, 'train')
    assert 'padded pixels would be trained as label 0' in warning


def test_crops_of_another_size_than_the_model_pads_to(root):
    """A usual mistake: one of the two places is changed."""
    cfg = shrunk('ravlt-upernet', root)
    height, width = cfg.model.data_preprocessor.size
    check_run(cfg, 'train')
    cfg.model.data_preprocessor.size = (height, width // 2)
    message = rf'model.data_preprocessor.size: is \({height}, {width // 2}\), but images are '
    message += rf'cropped to \({height}, {width}\): an image that is smaller than the crop would '
    (warning,) = check_run(cfg, 'train')
    assert re.search(f'{message}end the training', warning)
    cfg.model.data_preprocessor.size = [2 * height, width]
    (warning,) = check_run(cfg, 'train')
    assert f'all images would be padded. Set model.data_preprocessor.size=({height}, ' in warning
    check_run(cfg, 'val')
    cfg.train_dataloader.dataset.pipeline.insert(-1, dict(type='Pad', size=(2 * height, width)))
    assert check_run(cfg, 'train') == []
    cfg.train_dataloader.dataset.pipeline.pop(-2)
    cfg.model.data_preprocessor.update(size=None, size_divisor=32)
    assert check_run(cfg, 'train') == []


def test_a_class_that_is_ignored_where_nothing_is_padded():
    """MMSegmentation's config of HSI-Drive."""
    head, pad = Head(3, ignore_index=0), Head(0, seg_pad_val=255)
    assert not [*check_padding(model_with(decode_head=head, data_preprocessor=pad))]


def test_records_with_problems_are_one_warning(root):
    cfg = shrunk('ravlt-retinanet', root)
    assert check_run(cfg, 'train', 'val') == []

    def spoil(content):
        for annotation in content['annotations'][:2]:
            content['annotations'].append(copy.deepcopy(annotation))
            content['annotations'][-1]['id'] += 1000
            annotation['bbox'][2] = 0

    change(root / COCO, spoil)
    (line,) = check_run(cfg, 'train', 'val')
    assert "train_dataloader: 2 of 'box without extent'; the first: " in line
    assert f'{root / COCO}: annotation 1: bbox' in line


def test_every_file_is_read_once(root, monkeypatch):
    """Four checks need the file of the validation set."""
    opened = []
    real = fileio.get
    monkeypatch.setattr(fileio, 'get', lambda path, *args: opened.append(path) or real(path, *args))
    check_run(shrunk('ravlt-retinanet', root), 'train', 'val', 'test')
    assert sorted(opened) == sorted(str(root / name) for name in (COCO, VAL))


def test_a_data_set_that_is_not_of_mmengine(root):
    class Plain:
        def __init__(self, ann_file):
            self.ann_file = ann_file

    DATASETS.register_module(module=Plain, force=True)
    cfg = shrunk('ravlt-retinanet', root)
    cfg.train_dataloader.dataset = dict(type='Plain', ann_file=str(root / COCO))
    check_run(cfg, 'train')
    assert not issubclass(Plain, BaseDataset)


def test_a_classifier_of_one_class(root):
    """Its loss is 0, and its accuracy 100 %."""
    cfg = shrunk('ravlt-nano-cls', root)
    for loader in (cfg.train_dataloader, cfg.val_dataloader):
        loader.dataset.metainfo = dict(classes=('only',))
    cfg.model.head.num_classes = 1
    refused("^train_dataloader: has one class, 'only', from which", cfg, 'train')
    check_run(cfg, 'val')
