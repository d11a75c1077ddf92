"""Data that cannot be used is named before work starts."""

import json
import os
import pickle

import numpy as np
import pytest
from mmengine.config import Config

from mmlinattn.datasets import shapes
from mmlinattn.engine.preflight.data import DataError, check_data
from mmlinattn.engine.runner.runner import PluginRunner
from tests.families import shrunk


@pytest.fixture
def root(tmp_path):
    return shapes.generate(tmp_path / 'shapes', num_train=2, num_val=1, image_size=64, workers=1)


def build(cfg):
    return PluginRunner.build_dataloader(cfg.train_dataloader)


def test_folder_without_a_name_that_fits(root):
    cfg = shrunk('segformer', root)
    folder = root / 'cityscapes/leftImg8bit/train'
    for path in folder.rglob('*.png'):
        path.rename(path.with_suffix('.jpg'))
    first = 'shapes/shapes_000001_000000_leftImg8bit.jpg'
    with pytest.raises(
        DataError,
        match=rf"{folder} has no image whose name ends in '_leftImg8bit\.png' .*it has {first}, ",
    ):
        build(cfg)
    for path in folder.rglob('*.jpg'):
        path.unlink()
    with pytest.raises(DataError, match='it has no file'):
        build(cfg)


def test_a_folder_without_its_slash_and_one_that_is_not_there(root):
    cfg = shrunk('segformer', root)
    cfg.train_dataloader.dataset.data_root = f'{root}cityscapes'
    with pytest.raises(FileNotFoundError, match=f"end data_root with a slash: '{root}/'"):
        check_data(cfg, 'train_dataloader')
    cfg.train_dataloader.dataset.data_root = str(root.parent / 'parts')
    with pytest.raises(FileNotFoundError, match='set data_root of every data loader and ann_file'):
        check_data(cfg, 'train_dataloader')


def test_classes_that_the_annotations_do_not_have(root):
    cfg = shrunk('ravlt-retinanet', root)
    cfg.train_dataloader.dataset.metainfo = dict(classes=('bolt', 'nut'))
    with pytest.raises(DataError, match=r"instances_train2017\.json has no image .*'bolt', 'nut'"):
        build(cfg)


@pytest.mark.parametrize('change', [lambda c: c.pop(1), lambda c: c.insert(1, c[1])])
def test_a_category_that_is_missing_or_there_twice(root, change):
    """Those behind it would get labels of other classes."""
    path = root / 'coco/annotations/instances_train2017.json'
    content = json.loads(path.read_text())
    change(content['categories'])
    path.write_text(json.dumps(content))
    cfg = shrunk('ravlt-retinanet', root)
    with pytest.raises(
        DataError, match=r"instances_train2017\.json: the file (lacks|has) 'square'"
    ):
        build(cfg)


@pytest.mark.parametrize(
    'change, message',
    [
        (lambda c: c['annotations'][0].pop('bbox'), 'annotation 1: bbox is None'),
        (lambda c: c['images'][0].update(height='x'), r"image 1: \(height, width\) is \('x', 64"),
        (lambda c: c['images'][0].pop('id'), r"images\[0\]: has no id: .'file_name'"),
    ],
)
def test_the_record_that_cannot_be_used_is_named(root, change, message):
    path = root / 'coco/annotations/instances_train2017.json'
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match=f'{path}: {message}.*; mmlinattn check-data'):
        build(shrunk('ravlt-retinanet', root))
    path.write_text('{')
    with pytest.raises(DataError, match=f'{path} is no JSON'):
        build(shrunk('ravlt-retinanet', root))


@pytest.mark.parametrize('family', ['ravlt-retinanet', 'segformer', 'ravlt-semantic-fpn'])
def test_images_that_the_list_has_and_the_folder_lacks(root, family):
    cfg = shrunk(family, root)
    assert len(build(cfg).dataset) == 2
    if family == 'ravlt-retinanet':
        for path in (root / 'coco/train2017').iterdir():
            path.rename(path.with_suffix('.png'))
        with pytest.raises(DataError, match=r'000000000001\.jpg .*does not exist; .*\.png, '):
            build(cfg)
    else:
        for path in root.glob('*/annotations/training/*'), root.glob('*/gtFine/train/*/*'):
            for file in path:
                file.unlink()
        with pytest.raises(DataError, match=r'\(seg_map_path of sample 0 .*has no file'):
            build(cfg)


def test_files_that_would_run_code(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / 'ran'),)

    (tmp_path / 'evil.pkl').write_bytes(pickle.dumps(Evil()))
    np.save(tmp_path / 'evil.npy', np.array([Evil()], dtype=object), allow_pickle=True)
    np.savez(tmp_path / 'evil.npz', a=np.array([Evil()], dtype=object), allow_pickle=True)
    np.save(tmp_path / 'plain.npy', np.zeros(3))
    (tmp_path / 'plain.pkl').write_bytes(pickle.dumps([dict(box=np.zeros(4))]))

    def check(name):
        dataset = dict(data_root=str(tmp_path), proposal_file=name)
        check_data(Config(dict(train_dataloader=dict(dataset=dataset))), 'train_dataloader')

    check('plain.pkl')
    check('plain.npy')
    for name in ('evil.pkl', 'evil.npy', 'evil.npz'):
        with pytest.raises(DataError, match=f'{name} is refused'):
            check(name)
    assert not (tmp_path / 'ran').exists()


def test_an_address_that_no_file_backend_reads():
    dataset = dict(data_root='gs://bucket/coco/')
    with pytest.raises(ValueError, match="'gs:.*': MMEngine has no file backend for 'gs'"):
        check_data(Config(dict(train_dataloader=dict(dataset=dataset))), 'train_dataloader')
