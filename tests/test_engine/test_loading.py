"""A file or a label that training cannot use is named, at the latest when it is loaded."""

import json
import shutil
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from mmengine.config import Config
from PIL import ExifTags, Image

from mmlinattn.datasets import shapes
from mmlinattn.engine.preflight import dataset_audit
from mmlinattn.engine.preflight.data import DataError
from mmlinattn.engine.runner.runner import PluginRunner
from tests.families import shrunk

ANNOTATIONS = 'coco/annotations/instances_train2017.json'


@pytest.fixture
def root(tmp_path):
    return shapes.generate(tmp_path / 'shapes', num_train=3, num_val=1, image_size=64, workers=1)


def change(root, function):
    path = root / ANNOTATIONS
    content = json.loads(path.read_text())
    function(content)
    path.write_text(json.dumps(content))


def files(root, folder):
    return sorted(path for path in (root / folder).rglob('*') if path.is_file())


def build(family, root):
    return PluginRunner.build_dataloader(shrunk(family, root).train_dataloader)


@pytest.fixture
def outside(root, tmp_path):
    return shutil.copy(files(root, 'coco/train2017')[1], tmp_path / 'secret.jpg')


@pytest.mark.parametrize('name', ['/dev/zero', '{outside}', '../../../secret.jpg', 'link.jpg'])
@pytest.mark.parametrize('index', [0, 1])
def test_images_outside_of_the_data_root(root, outside, name, index):
    (root / 'coco/train2017/link.jpg').symlink_to(outside)
    name = name.format(outside=outside)
    change(root, lambda content: content['images'][index].update(file_name=name))
    message = rf"{name}.* outside of the folders of its data set, '{root}/coco"
    if index == 0:  # before any work
        with pytest.raises(DataError, match=message):
            build('ravlt-retinanet', root)
    else:
        dataset = build('ravlt-retinanet', root).dataset
        assert dataset[0]['inputs'].shape[0] == 3
        with pytest.raises(DataError, match=message):
            dataset[1]


@pytest.mark.parametrize('folder', ['leftImg8bit', 'gtFine'])
def test_images_and_maps_that_are_links_elsewhere(root, outside, folder):
    path = files(root, f'cityscapes/{folder}/train')[1]
    dataset = build('segformer', root).dataset
    path.unlink()
    path.symlink_to(outside)
    with pytest.raises(DataError, match=f'{path}.* is a link to {outside}, outside of the folders'):
        dataset[1]


def test_no_memory_for_an_image(root, monkeypatch):
    dataset = build('ravlt-retinanet', root).dataset

    def no_memory(*args, **kwargs):
        raise MemoryError

    monkeypatch.setattr('mmcv.transforms.loading.mmcv', SimpleNamespace(imfrombytes=no_memory))
    path = files(root, 'coco/train2017')[0]
    with pytest.raises(DataError, match=f'{path} cannot be loaded: MemoryError'):
        dataset[0]


def turn(path):
    """Gives an image of 64 x 48 pixels an EXIF orientation, which loading turns to 48 x 64."""
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    Image.fromarray(np.zeros((48, 64, 3), np.uint8)).save(path, exif=exif)


def test_images_that_loading_turns_unlike_their_annotations(root):
    path = files(root, 'coco/train2017')[1]
    turn(path)
    change(root, lambda content: content['images'][1].update(height=48, width=64))
    with pytest.raises(DataError, match=rf'{path} .* turns it to \(64, 48\) .* for \(48, 64\)'):
        build('ravlt-retinanet', root).dataset[1]
    change(root, lambda content: content['images'][1].update(height=64, width=48))
    assert build('ravlt-retinanet', root).dataset[1]


def test_maps_that_are_no_labels_of_their_images(root):
    image, seg_map = (files(root, f'ade/{f}/training')[1] for f in ('images', 'annotations'))
    dataset = build('ravlt-semantic-fpn', root).dataset
    labels = cv2.imread(str(seg_map), cv2.IMREAD_UNCHANGED)
    cv2.imwrite(str(seg_map), np.repeat(labels[..., None], 3, 2))
    with pytest.raises(DataError, match=f'{image} .*its map {seg_map} has 3 channels'):
        dataset[1]
    cv2.imwrite(str(seg_map), labels[:48])
    with pytest.raises(DataError, match=rf'its map {seg_map} has the size \(48, 64\), it has \(64'):
        dataset[1]
    turn(image)
    with pytest.raises(DataError, match=r'has the size \(48, 64\), it has \(64, 48\) itself'):
        dataset[1]


def train(family, root, work_dir, options=()):
    cfg = shrunk(family, root)
    cfg.merge_from_dict(dict(options))
    keep = ('model', 'train_dataloader', 'default_scope', 'custom_imports')
    cfg = Config({k: cfg[k] for k in keep if k in cfg})
    cfg.train_dataloader.update(num_workers=2, persistent_workers=False)
    cfg.update(
        work_dir=str(work_dir),
        train_cfg=dict(by_epoch=True, max_epochs=1),
        default_hooks=dict(checkpoint=None),
        optim_wrapper=dict(type='OptimWrapper', optimizer=dict(type='SGD', lr=1e-4)),
        experiment_name=work_dir.name,
    )
    PluginRunner.from_cfg(cfg).train()


def test_labels_that_the_model_does_not_have(root, tmp_path, monkeypatch):
    seg_map = files(root, 'cityscapes/gtFine/train')[1]
    labels = cv2.imread(str(seg_map), cv2.IMREAD_UNCHANGED)
    labels[0, 0] = 77
    cv2.imwrite(str(seg_map), labels)
    with pytest.raises(DataError, match=rf'^{seg_map} has labels \[77\], known are 0 to '):
        train('segformer', root, tmp_path / 'seg')
    monkeypatch.setattr(dataset_audit, 'MAPS', 2)  # of other images, as in a large data set
    with pytest.raises(DataError, match=f'largest label of its map {seg_map} is 77, .* are 0 to '):
        train('segformer', root, tmp_path / 'seg')


def test_labels_of_a_classifier(root, tmp_path, monkeypatch):
    with pytest.raises(DataError, match='model.head.num_classes is 3, but .* has 5 classes'):
        train('ravlt-nano-cls', root, tmp_path / 'cls', {'model.head.num_classes': 3})
    # A data set that does not name its classes.
    options = {'model.head.num_classes': 3, 'train_dataloader.dataset.metainfo': None}
    monkeypatch.setattr(PluginRunner, '_check_labels', lambda *_: None)
    message = r'/(star|triangle)/.* its label is \d, the labels of 3 classes are 0 to 2'
    with pytest.raises(DataError, match=message):
        train('ravlt-nano-cls', root, tmp_path / 'cls', options)


def test_objects_that_are_all_crowds(root):
    def gather(content):
        for record in content['annotations']:
            record['iscrowd'] = 1

    change(root, gather)
    with pytest.raises(DataError, match=f'{root / ANNOTATIONS} has .* all of them crowds'):
        build('ravlt-retinanet', root)


def test_ids_that_the_evaluation_cannot_take(root, tmp_path):
    """Said before training, not after its first epoch."""

    def rename(content):
        for record in content['annotations']:
            record['id'] = f'a{record["id"]}'

    path = root / 'coco/annotations/instances_val2017.json'
    content = json.loads(path.read_text())
    rename(content)
    path.write_text(json.dumps(content))
    cfg = shrunk('ravlt-retinanet', root)
    cfg.work_dir = str(tmp_path / 'work')
    cfg.optim_wrapper = dict(type='OptimWrapper', optimizer=dict(type='SGD', lr=1e-4))
    runner = PluginRunner.from_cfg(cfg)
    with pytest.raises(DataError, match="CocoMetric: annotation 'a1' of its file has no number"):
        runner.prepare_training()
