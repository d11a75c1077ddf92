"""tools/analysis_tools/check_data.py: every fault is found, and nothing where there is none."""

import json
import os
import shutil

import cv2
import numpy as np
import pytest

from mmlinattn.datasets import shapes
from mmlinattn.engine.preflight import dataset_audit as inspection

from .conftest import CONFIGS, FOLDERS

COCO = 'coco/annotations/instances_train2017.json'


@pytest.fixture
def data(tmp_path):
    root = tmp_path / 'shapes'
    return shapes.generate(root, num_train=6, num_val=3, image_size=64, workers=1)


@pytest.fixture
def check(root, data, run, tmp_path):
    """check(task, ...) -> exit code and findings as (split, kind, where, what)."""

    def call(task, *options, workers=1, debug=True):
        found = tmp_path / 'found.json'
        where = [f'{s}_dataloader.dataset.data_root={data}/{FOLDERS[task]}'
                 for s in ('train', 'val', 'test')]  # fmt: skip
        with_them = [root / CONFIGS[task], '--workers', workers, '--json', found]
        options = ['--cfg-options', *where, *options]
        code = run('analysis_tools/check_data', *with_them, *options, debug=debug)
        report = json.loads(found.read_text())
        return code, [(s, *f.values()) for s, all_of in report['findings'].items() for f in all_of]

    return call


@pytest.mark.parametrize('task', CONFIGS)
def test_nothing_is_found_in_shapes(check, task, capsys):
    assert check(task) == (0, [])
    assert 'nothing found' in capsys.readouterr().out


def change(path, function):
    content = json.loads(path.read_text())
    function(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize('workers', [1, 2])
def test_images_and_annotations_of_a_detector(check, data, workers, capfd):
    images = sorted((data / 'coco/train2017').iterdir())
    images[0].write_bytes(images[0].read_bytes()[:-400])
    images[1].write_bytes(b'no image')
    images[2].unlink()
    cv2.imwrite(str(images[3]), np.zeros((64, 32, 3), np.uint8))
    shutil.copy(sorted((data / 'coco/val2017').iterdir())[0], images[4])

    def spoil(content):
        content['annotations'][0]['bbox'][2] = 0
        content['annotations'][1]['category_id'] = 99
        content['images'][5]['height'] = None

    change(data / COCO, spoil)
    code, found = check('det', workers=workers)
    assert code == 1
    kinds = {(split, kind): (where, what) for split, kind, where, what in found}
    assert kinds[('train', 'truncated')][0] == str(images[0])
    assert kinds['train', 'size'][0] == str(images[3])
    assert '(64, 64)' in kinds['train', 'size'][1]
    assert kinds['val', 'duplicate'][1] == f'the same content as {images[4]} of train'
    assert {w for s, k, w, _ in found if k == 'unreadable'} == {str(images[1]), str(images[2])}
    assert f'{data / COCO}: annotation 1' in kinds['train', 'box without extent'][0]
    assert 'no category has the id 99' in kinds['train', 'class'][1]
    assert '(None, 64)' in kinds['train', 'annotation'][1]
    assert len(found) == 8
    out = capfd.readouterr().out
    assert 'truncated' in out and 'train: 6 images' in out


def test_maps_of_a_segmentor(check, data):
    maps = sorted((data / 'ade/annotations/training').iterdir())
    labels = cv2.imread(str(maps[0]), cv2.IMREAD_UNCHANGED)
    cv2.imwrite(str(maps[0]), labels[:32])
    labels[0, 0] = 77
    cv2.imwrite(str(maps[1]), labels)
    cv2.imwrite(str(maps[2]), np.random.default_rng(0).integers(0, 9, (64, 64, 3), np.uint8))
    code, found = check('seg')
    assert code == 1
    assert [(k, w) for _, k, w, _ in found] == [
        ('mask', str(maps[0])), ('class', str(maps[1])), ('mask', str(maps[2]))
    ]  # fmt: skip
    assert '[77]' in found[1][3]


def test_labels_beyond_the_head_of_a_classifier(check):
    code, found = check('cls', 'model.head.num_classes=4')
    assert code == 1 and {k for _, k, *_ in found} == {'class'}
    assert 'its label is 4, of 4 classes' in found[0][3]


def test_annotations_that_are_no_json(check, data):
    path = data / COCO
    path.write_text(path.read_text()[:300])
    code, found = check('det')
    assert code == 1 and found[0][1:3] == ('annotation', str(path))


def test_what_the_user_got_wrong(check, data, capsys):
    with pytest.raises(SystemExit) as stopped:
        check('det', 'train_dataloader.dataset.data_root=nowhere', debug=False)
    assert stopped.value.code == 2
    assert "error: FileNotFoundError: train_dataloader: 'nowhere/' does" in capsys.readouterr().err


def test_a_decoder_that_crashes_is_a_finding(check, data, monkeypatch):
    bad = str(sorted((data / 'coco/train2017').iterdir())[2])
    decoded = inspection._decoded
    monkeypatch.setattr(
        inspection,
        '_decoded',
        lambda path, flag, backend: os._exit(11) if path == bad else decoded(path, flag, backend),
    )
    code, found = check('det', workers=2)
    assert code == 1 and [f[:3] for f in found] == [('train', 'unreadable', bad)]
