"""Data that cannot be used is named before work starts, at the latest when it is loaded."""

import json
import os
import pickle
import re
import shutil
from collections import Counter
from contextlib import nullcontext
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from mmcv.transforms import BaseTransform
from mmengine.config import Config
from mmengine.registry import DATASETS, TRANSFORMS
from PIL import ExifTags, Image

from mmlinattn.datasets import shapes
from mmlinattn.engine.preflight import sample_loading
from mmlinattn.engine.preflight.data import DataError, Labels, check_data, labels_of
from mmlinattn.engine.preflight.run import audit, check_run
from mmlinattn.engine.preflight.sample_loading import CheckedLoading, check_samples
from mmlinattn.engine.runner.runner import PluginRunner
from tests.families import shrunk

ANNOTATIONS = 'coco/annotations/instances_train2017.json'


@pytest.fixture
def root(tmp_path):
    return shapes.generate(tmp_path / 'shapes', num_train=3, num_val=1, image_size=64)


def change(root, function, name=ANNOTATIONS):
    path = root / name
    content = json.loads(path.read_text())
    function(content)
    path.write_text(json.dumps(content))


def files(root, folder):
    return sorted(path for path in (root / folder).rglob('*') if path.is_file())


def loaded(cfg):
    """The training set of a config, as the runner has it."""
    dataset = DATASETS.build(cfg.train_dataloader.dataset)
    check_samples(dataset, labels_of(cfg))
    return dataset


def refused(message, cfg):
    with pytest.raises(DataError, match=message):
        loaded(cfg)


def test_folder_without_a_name_that_fits(root):
    cfg = shrunk('segformer', root)
    folder = root / 'cityscapes/leftImg8bit/train'
    for path in folder.rglob('*.png'):
        path.rename(path.with_suffix('.jpg'))
    first = 'shapes/shapes_000001_000000_leftImg8bit.jpg'
    message = rf"{folder} has no image whose name ends in '_leftImg8bit\.png' .*it has {first}, "
    with pytest.raises(DataError, match=message):
        PluginRunner.build_dataloader(cfg.train_dataloader)
    for path in folder.rglob('*.jpg'):
        path.unlink()
    with pytest.raises(DataError, match='it has no file'):
        PluginRunner.build_dataloader(cfg.train_dataloader)


def test_a_folder_without_its_slash_and_one_that_is_not_there(root):
    cfg = shrunk('segformer', root)
    cfg.train_dataloader.dataset.data_root = f'{root}cityscapes'
    with pytest.raises(FileNotFoundError, match=f"end data_root with a slash: '{root}/'"):
        check_data(cfg, 'train_dataloader')
    cfg.train_dataloader.dataset.data_root = f'{root}/cityscapes'
    cfg.train_dataloader.dataset.data_prefix.img_path = 'leftImg8bit/trian'
    names = ', '.join(sorted(os.listdir(root / 'cityscapes/leftImg8bit')))
    with pytest.raises(
        FileNotFoundError, match=f'; {root}/cityscapes/leftImg8bit has {names}; make'
    ):
        check_data(cfg, 'train_dataloader')
    cfg.train_dataloader.dataset.data_root = str(root.parent / 'parts')
    with pytest.raises(FileNotFoundError, match='set data_root of every data loader and ann_file'):
        check_data(cfg, 'train_dataloader')


def test_files_that_would_run_code(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / 'ran'),)

    (tmp_path / 'evil.pkl').write_bytes(pickle.dumps(Evil()))
    np.save(tmp_path / 'evil.npy', np.array([Evil()], dtype=object), allow_pickle=True)
    np.savez(tmp_path / 'evil.npz', a=np.array([Evil()], dtype=object), allow_pickle=True)
    np.save(tmp_path / 'plain.npy', np.zeros(3))
    (tmp_path / 'plain.pkl').write_bytes(pickle.dumps([dict(box=np.zeros(4))]))
    (tmp_path / 'refs(unc).p').write_bytes(pickle.dumps(Evil(), 0))
    (tmp_path / 'evil.txt').write_bytes(pickle.dumps(Evil()))
    (tmp_path / 'evil.yaml').write_text(f'a: !!python/object/apply:os.mkdir [{tmp_path / "ran"}]')
    (tmp_path / 'plain.yaml').write_text('metainfo: {classes: [a]}')

    def check(name, option='proposal_file'):
        dataset = dict(type='mmdet.RefCocoDataset', data_root=str(tmp_path))
        dataset[option] = name
        check_data(Config(dict(train_dataloader=dict(dataset=dataset))), 'train_dataloader')

    check('plain.pkl')
    check('plain.npy')
    check('plain.yaml')
    for name in ('evil.pkl', 'evil.npy', 'evil.npz', 'evil.txt', 'evil.yaml'):
        with pytest.raises(DataError, match=f'{name} is refused'):
            check(name)
    with pytest.raises(DataError, match=r'unc\).p is refused'):
        check('refs(unc).p', 'split_file')
    assert not (tmp_path / 'ran').exists()


@pytest.mark.parametrize('name', ['/dev/zero', '{outside}', '../../../secret.jpg', 'link.jpg'])
def test_images_outside_of_the_data_root(root, tmp_path, name):
    outside = shutil.copy(files(root, 'coco/train2017')[1], tmp_path / 'secret.jpg')
    (root / 'coco/train2017/link.jpg').symlink_to(outside)
    name = name.format(outside=outside)
    change(root, lambda content: content['images'][1].update(file_name=name))
    message = rf"{name}.* outside of the folders of its data set, '{root}/coco"
    refused(message, shrunk('ravlt-retinanet', root))


def every(**values):
    return lambda content: [each.update(values) for each in content['annotations']]


def test_annotations_that_cannot_be_trained(root):
    """All kinds of them are in test_datasets/test_coco_checks.py."""
    change(root, every(iscrowd=1))
    cfg = shrunk('ravlt-retinanet', root)
    message = r'annotations: none of the \d+ objects can be .* of crowds \(iscrowd'
    with pytest.raises(DataError, match=f'{root / ANNOTATIONS}: .*{message}'):
        check_run(cfg, 'train')
    (root / ANNOTATIONS).write_text('{')
    with pytest.raises(DataError, match=f'{root / ANNOTATIONS}: cannot be read: it is no JSON'):
        check_run(cfg, 'train')
    (root / ANNOTATIONS).write_bytes(b'\xef\xbb\xbf{}')
    with pytest.raises(DataError, match=f'{root / ANNOTATIONS}: .* byte-order mark'):
        check_run(cfg, 'train')


def test_ids_that_the_evaluation_cannot_take(root):
    """Said before training, not after its first epoch."""

    def rename(content):
        for record in content['annotations']:
            record['id'] = f'a{record["id"]}'

    change(root, rename, 'coco/annotations/instances_val2017.json')
    with pytest.raises(DataError, match="annotation 'a1': its id is text"):
        check_run(shrunk('ravlt-retinanet', root), 'train', 'val')


def test_images_that_the_list_has_and_the_folder_lacks(root):
    for path in (root / 'coco/train2017').iterdir():
        path.rename(path.with_suffix('.png'))
    refused(r'000000000001\.jpg does not exist; .*\.png, ', shrunk('ravlt-retinanet', root))
    for family in ('segformer', 'ravlt-semantic-fpn'):
        assert len(loaded(shrunk(family, root))) == 3
    for path in files(root, 'cityscapes/gtFine/train') + files(root, 'ade/annotations/training'):
        path.unlink()
    for family in ('segformer', 'ravlt-semantic-fpn'):
        refused(r'\.png does not exist; .* has no file', shrunk(family, root))


@pytest.mark.parametrize('folder', ['leftImg8bit', 'gtFine'])
def test_images_and_maps_that_cannot_be_read(root, folder):
    path = files(root, f'cityscapes/{folder}/train')[1]
    dataset = loaded(shrunk('segformer', root))
    path.write_bytes(b'no image')
    with pytest.raises(DataError, match=f'^{path} cannot be loaded: '):
        dataset[1]  # while training
    refused(f'^{path} cannot be loaded: ', shrunk('segformer', root))  # before it


def test_no_memory_for_an_image(root, monkeypatch):
    dataset = loaded(shrunk('ravlt-retinanet', root))

    def no_memory(*args, **kwargs):
        raise MemoryError

    monkeypatch.setattr('mmcv.transforms.loading.mmcv', SimpleNamespace(imfrombytes=no_memory))
    path = files(root, 'coco/train2017')[0]
    with pytest.raises(DataError, match=f'{path} cannot be loaded: MemoryError'):
        dataset[0]


def test_a_video_that_cannot_be_read(tmp_path):
    """Its own reason is kept: that of an image would be that it is damaged."""

    def load(results):
        raise ValueError('the file has no video stream')

    path = tmp_path / 'sound.mp4'
    path.write_bytes(b'sound')
    with pytest.raises(DataError, match='sound.mp4 cannot be loaded: the file has no video stream'):
        CheckedLoading(load, Labels())(dict(video_path=str(path)))


def test_a_frame_that_links_to_a_file_elsewhere(tmp_path):
    folder = tmp_path / 'clips/a/one'
    folder.mkdir(parents=True)
    (tmp_path / 'secret.png').write_bytes(b'secret')
    (folder / '00001.png').symlink_to(tmp_path / 'secret.png')
    sample = dict(video_path=str(folder), frame_template='{:05}.png', total_frames=2)
    load = CheckedLoading(dict, Labels(), [str(tmp_path / 'clips')])
    with pytest.raises(DataError, match=r'00001.png is a link to .*secret.png, outside of'):
        load(sample)
    assert load(dict(sample, frame_template='{:05}.jpg')), 'the link is no frame'
    with pytest.raises(DataError, match='00001.png is a link to'):
        load(dict(sample, video_path=str(folder.parent), frame_template='one/{:05}.png'))


def turn(path):
    """Gives an image of 64 x 48 pixels an EXIF orientation, which loading turns to 48 x 64."""
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    Image.fromarray(np.zeros((48, 64, 3), np.uint8)).save(path, exif=exif)


def test_images_of_another_size_than_their_annotations(root):
    path = files(root, 'coco/train2017')[1]
    cfg = shrunk('ravlt-retinanet', root)
    turn(path)
    change(root, lambda content: content['images'][1].update(height=48, width=64))
    refused(rf'{path} is 64 high .* \(48, 64\)\. Exchange them', cfg)
    change(root, lambda content: content['images'][1].update(height=64, width=48))
    assert loaded(cfg)[1]
    change(root, lambda content: content['images'][1].update(height=128, width=96))
    refused(rf'{path} is 64 high and 48 wide, its .* \(128, 96\)$', cfg)


def test_maps_that_are_no_labels_of_their_images(root):
    image, seg_map = (files(root, f'ade/{f}/training')[1] for f in ('images', 'annotations'))
    cfg = shrunk('ravlt-semantic-fpn', root)
    dataset = loaded(cfg)
    labels = cv2.imread(str(seg_map), cv2.IMREAD_UNCHANGED)
    cv2.imwrite(str(seg_map), np.repeat(labels[..., None], 3, 2))
    for load in (lambda: dataset[1], lambda: loaded(cfg)):
        with pytest.raises(DataError, match=f'^{seg_map} has 3 channels'):
            load()
    cv2.imwrite(str(seg_map), labels[:48])
    with pytest.raises(DataError, match=rf'^{seg_map} has the size \(48, 64\), its image {image}'):
        dataset[1]


def segmentor(root, label, reduce_zero_label=False):
    """A config of which all maps have this label, and 0."""
    cfg = shrunk('segformer', root)
    for path in root.rglob('*_labelTrainIds.png'):
        seg_map = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
        seg_map = seg_map.astype(np.uint16 if label > 255 else np.uint8)
        seg_map[:9], seg_map[9:] = 0, label
        cv2.imwrite(str(path), seg_map)
    cfg.train_dataloader.dataset.reduce_zero_label = reduce_zero_label
    return cfg


def test_maps_with_labels_that_the_model_lacks(root):
    number = labels_of(shrunk('segformer', root)).number
    loaded(segmentor(root, number - 1))
    message = rf'has labels \[{number}\], known are 0 to {number - 1}; .* set reduce_zero_label'
    refused(message, segmentor(root, number))
    loaded(segmentor(root, number, reduce_zero_label=True))
    refused(rf'has labels \[77\], known are 0 to {number - 1}$', segmentor(root, 77))
    dataset = loaded(segmentor(root, 1))
    segmentor(root, 77)
    with pytest.raises(DataError, match=r'has labels \[77\]'):  # while training
        dataset[1]


@pytest.mark.parametrize('package, is_own', [('users', True), ('mmseg', False)])
def test_a_step_behind_the_loading_may_change_labels(root, monkeypatch, package, is_own):
    """One of the user's, such as one that merges classes: a warning, no error."""
    cfg, warned = segmentor(root, 77), []
    monkeypatch.setattr(sample_loading, 'log_warning', warned.append)

    @TRANSFORMS.register_module(force=True)
    class Merge(BaseTransform):
        __module__ = package

        def transform(self, results):
            results['gt_seg_map'][results['gt_seg_map'] == 77] = 0
            return results

    merge = dict(type='RandomApply', transforms=[dict(type='Merge')], prob=1.0)
    cfg.train_dataloader.dataset.pipeline.insert(2, merge)
    if not is_own:
        refused(r'has labels \[77\]', cfg)
        return
    dataset = loaded(cfg)
    assert 'has labels [77]' in warned[0]
    assert int(dataset[0]['data_samples'].gt_sem_seg.data.max()) < 77


def test_maps_of_16_bits_that_mmsegmentation_wraps(root):
    """Their labels are known ones after the cast; 65535 is ignored as 255 is."""
    message = r'TrainIds.png has labels \[257\], .* \(257 as 1\): write a map of 8 bits'
    refused(message, segmentor(root, 257))
    cfg = segmentor(root, 257)
    base = TRANSFORMS.get('mmseg.LoadAnnotations')
    own = type('Own', (base,), dict(_load_seg_map=lambda *args: base._load_seg_map(*args)))
    own._load_seg_map.__module__ = 'mine'
    TRANSFORMS.register_module(module=own, force=True)
    for step in cfg.train_dataloader.dataset.pipeline:
        step.type = 'mmengine.Own' if step.type.endswith('LoadAnnotations') else step.type
    loaded(cfg)  # it may read labels above 255
    cfg = segmentor(root, 65535)
    loaded(cfg)
    cfg.model.decode_head.ignore_index = 254
    cfg.model.decode_head.num_classes = 256
    refused(r'has labels \[65535\]', cfg)


def findings(cfg):
    """What ``check-data`` says."""
    return [str(finding.what) for _, finding in audit(cfg, ('train',), Counter())]


def test_a_map_without_an_image_whose_suffix_has_capitals(root):
    cfg = shrunk('segformer', root)
    prefix = cfg.train_dataloader.dataset.data_prefix.seg_map_path
    seg_map = next((root / cfg.train_dataloader.dataset.data_root / prefix).rglob('*TrainIds.png'))
    shutil.copy(seg_map, seg_map.with_name(f'more{seg_map.name}'))
    assert any('not read: no image has this name' in found for found in findings(cfg))


# Of maps with the labels 0 to 4.
@pytest.mark.parametrize(
    'change_map, is_reduced, message',
    [
        (
            lambda m: np.minimum(m, 1) * 255,
            False,
            "of 'b', 'c', 'd', 'e': write other classes as 1, 2, .*255",
        ),
        (lambda m: m % 4 + 1, False, "of 'a': if its maps count classes from 1, set"),
        (lambda m: m + 1, True, None),
        (lambda m: m, True, "of 'e': if its maps count classes from 0, .*=False"),
        (
            lambda m: np.minimum(m, 1),
            True,
            "of 'b', 'c', 'd', 'e': if its maps count classes from 0, .*=False",
        ),
        (lambda m: 0 * m + 2, False, "of 'a', 'b', 'd', 'e': if its"),
        (lambda m: np.where(m == 3, 4, m), False, "of 'd'$"),
        (lambda m: 0 * m, False, "of 'b', 'c', 'd', 'e'$"),  # all may be rare
    ],
)
def test_classes_without_a_pixel(root, monkeypatch, change_map, is_reduced, message):
    """Found before training in a few maps, and by check-data in all of them."""
    cfg = shrunk('segformer', root)
    cfg.model.decode_head.num_classes = 5
    for path in root.rglob('*_labelTrainIds.png'):
        seg_map = np.arange(64 * 64, dtype=np.uint8).reshape(64, 64) % 5
        cv2.imwrite(str(path), change_map(seg_map).astype(np.uint8))
    dataset = cfg.train_dataloader.dataset
    dataset.update(type='BaseSegDataset', reduce_zero_label=is_reduced)
    dataset.update(metainfo=dict(classes=('a', 'b', 'c', 'd', 'e')), img_suffix='_leftImg8bit.png')
    dataset.update(seg_map_suffix='_gtFine_labelTrainIds.png')
    said = []
    monkeypatch.setattr(sample_loading, 'log_warning', said.append)
    # A few maps may lack rare classes; they tell if they have one label alone.
    one_label = ('255', "'a', 'b'", "'d', 'e': if its maps")
    is_alone = message and any(text in message for text in one_label)
    for looked_at, where in ((8, ''), (2, ' in the 2 maps that were read')):
        monkeypatch.setattr(sample_loading, 'LOOKED_AT', looked_at)
        said.clear()
        loaded(cfg)
        assert len(said) == bool(is_alone if where else message)
        assert all(where in text and re.search(message, text.replace(where, '')) for text in said)
    assert [re.search(message, text) is not None for text in findings(cfg)] == [True] * bool(
        message
    )


def test_classes_of_joined_data_sets(root):
    """None of both has all classes, and the model is trained with all."""
    cfg = shrunk('ravlt-nano-cls', root)
    dataset = cfg.train_dataloader.dataset
    names = {}
    for i, name in enumerate(dataset.pop('classes')):
        for path in files(root, f'imagenet/train/{name}'):
            names.setdefault(i % 2, []).append(f'{name}/{path.name} {i}')
    for i, lines in names.items():
        (root / f'{i}.txt').write_text('\n'.join(lines))
    parts = [dict(dataset, ann_file=str(root / f'{i}.txt')) for i in names]
    cfg.train_dataloader.dataset = dict(type='ConcatDataset', datasets=parts, _scope_='mmengine')
    assert not findings(cfg)
    parts[0]['ann_file'] = parts[1]['ann_file']
    cfg.train_dataloader.dataset = dict(type='ConcatDataset', datasets=parts, _scope_='mmengine')
    assert findings(cfg) == ["has no sample of 'circle', 'square', 'triangle'"]


def test_maps_of_ignored_pixels_only(root, monkeypatch):
    cfg = segmentor(root, 255)
    for path in root.rglob('*_labelTrainIds.png'):
        cv2.imwrite(str(path), np.full((64, 64), 255, np.uint8))
    refused('has maps with the label 255 only, which is ignored', cfg)
    assert 'has maps with the label 255 only' in findings(cfg)[-1]
    monkeypatch.setattr(sample_loading, 'LOOKED_AT', 2)
    loaded(cfg)  # the third one may have others


def test_a_class_without_an_image_or_an_object(root):
    cfg = shrunk('ravlt-nano-cls', root)
    cfg.train_dataloader.dataset.pop('classes')
    for path in files(root, 'imagenet/train/star'):
        path.unlink()
    assert "has no sample of 'star'" in findings(cfg)
    change(root, every(category_id=2))
    cfg = shrunk('ravlt-retinanet', root)
    message = "annotations: no object of ['circle', 'triangle', 'star', 'cross'] can be trained"
    assert message in check_run(cfg, 'train')[0] and check_run(cfg, 'val') == []
    assert message.partition(': ')[2] in findings(cfg)


@pytest.mark.parametrize('folder', ['leftImg8bit/train', 'leftImg8bit/train/shapes'])
def test_a_hidden_folder_of_images(root, folder):
    hidden = root / 'cityscapes' / folder / '.ipynb_checkpoints'
    hidden.mkdir()
    (hidden / 'notes.txt').touch()
    cfg = shrunk('segformer', root)
    check_run(cfg, 'train')
    (hidden / 'copy_leftImg8bit.png').touch()
    with pytest.raises(DataError, match=f'{hidden}: is a hidden folder whose images would be read'):
        check_run(cfg, 'train')
    assert 'is a hidden folder whose images would be read: remove or rename it' in findings(cfg)


def test_files_that_are_empty_or_nearly_black(root, monkeypatch):
    image, other = files(root, 'coco/train2017')[:2]
    cfg = shrunk('ravlt-retinanet', root)
    said = []
    monkeypatch.setattr(sample_loading, 'log_warning', said.append)
    Image.fromarray(np.full((64, 64), 4095, np.uint16)).save(image, 'png')  # of a 12-bit camera
    loaded(cfg)
    assert said == [f'{image} its 16-bit values end at 4095, black in 8 bits: scale them to 65535']
    other.write_bytes(b'')
    refused(f'^{other} cannot be loaded: the file is empty$', cfg)


def test_labels_of_a_classifier(root):
    cfg = shrunk('ravlt-nano-cls', root)
    cfg.model.head.num_classes = 3
    message = r'/(star|triangle)/.* has the label \d, the labels of 3 classes are 0 to 2'
    refused(message, cfg)
    image = files(root, 'coco/train2017')[0]
    records = [dict(img_path=str(image), gt_label=['circle'])]
    (root / 'texts.json').write_text(json.dumps(dict(metainfo={}, data_list=records)))
    dataset = dict(type='MultiLabelDataset', data_root=str(root), ann_file='texts.json')
    cfg.train_dataloader.dataset = dict(dataset, pipeline=cfg.train_dataloader.dataset.pipeline)
    refused(r"has the label \['circle'\], labels are integers from 0", cfg)


def test_a_classifier_needs_the_labels_of_images_that_are_trained_or_scored(root):
    cfg = shrunk('ravlt-nano-cls', root)
    cfg.train_dataloader.dataset.with_label = False
    refused(r'/train/.* has no gt_label, .*\(with_label=True\)', cfg)
    cfg.test_evaluator = [dict(type='DumpResults', out_file_path='out.pkl')]
    assert labels_of(cfg, 'val').required and not labels_of(cfg, 'test').required
    assert not labels_of(shrunk('ravlt-retinanet', root)).required
    own = shrunk('ravlt-nano-cls', root)
    own.model.type = 'FixMatch'
    assert not labels_of(own).required
    own.val_evaluator = dict(type='RetrievalRecall', topk=1)
    assert labels_of(own, 'val').number is None
    # A step of the user's adds the label.
    cfg.train_dataloader.dataset.pipeline.insert(1, dict(type='LabelOfName'))
    assert loaded(cfg)


@TRANSFORMS.register_module()
class LabelOfName(BaseTransform):
    def transform(self, results):
        return dict(results, gt_label=0)


def test_images_that_a_classification_set_does_not_read(root):
    cfg = shrunk('ravlt-nano-cls', root)
    image, beside = files(root, 'imagenet/train')[0], root / 'imagenet/train/a.jpg'
    assert not findings(cfg)
    image.rename(image.with_suffix('.webp'))
    shutil.copy(files(root, 'imagenet/train')[1], beside)
    beside.with_name('._b.jpg').touch()  # of macOS, hidden
    found = [each for _, each in audit(cfg, ('train',), Counter()) if each.kind == 'unread']
    assert [each.where for each in found] == [str(beside), str(image.with_suffix('.webp'))]
    assert all('1 files that are not read: add its suffix to ext' in each.what for each in found)
    cfg.train_dataloader.dataset.update(with_label=False, extensions=('.jpg', '.webp'))
    assert not any('not read' in text for text in findings(cfg))


@pytest.mark.parametrize(
    ('text', 'with_label', 'place'),
    [
        ('a b.jpg 0\nc.jpg 1\n', True, None),
        ('a b.jpg\nc.jpg\n', False, None),
        ('a.jpg 0\n\n', True, ', line 2: \'\' is not "image label": write'),
        ('a.jpg\n\n', False, ', line 2: \'\' is not "image": write'),
        ('a b.jpg\t0\n', True, r", line 1: 'a b\.jpg\\t0' is not"),
        ('a b.jpg\n', True, r", line 1: 'a b\.jpg' is not"),
        ('a.jpg 1.0\n', True, r", line 1: 'a\.jpg 1\.0' is not"),
        ('\ufeffa.jpg 0\n', True, r", line 1: '\\ufeffa\.jpg 0' .* byte-order mark"),
        ('', True, ", line 1: '' is not"),
        ('\xe4.jpg 0\n', True, ": cannot be read: 'utf-8' codec"),
    ],
)
def test_lines_of_a_list_of_images(root, text, with_label, place):
    cfg, path = shrunk('ravlt-nano-cls', root), root / 'list.txt'
    path.write_text(text, encoding='utf-8' if '\ufeff' in text else 'latin-1')
    cfg.train_dataloader.dataset.update(ann_file=str(path), with_label=with_label)
    with pytest.raises(DataError, match=f'^{path}{place}') if place else nullcontext():
        check_run(cfg, 'train')


def test_the_runner_looks_at_samples(root, tmp_path):
    cfg = shrunk('segformer', root)
    segmentor(root, 77)
    cfg.work_dir = str(tmp_path / 'work')
    runner = PluginRunner.from_cfg(cfg)
    for loop in ('train_loop', 'val_loop'):
        with pytest.raises(DataError, match=r'has labels \[77\]'):
            getattr(runner, loop)
