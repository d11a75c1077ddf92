"""``mmlinattn check-data``: every fault is found, and nothing where there is none."""

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import cv2
import mmcv
import numpy as np
import pytest
from PIL import ExifTags, Image

from mmlinattn.datasets import shapes
from mmlinattn.engine.preflight import dataset_audit, file_audit

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
        code = run('check-data', *with_them, *options, debug=debug)
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


def look_at_or_crash(records):
    """Stands in for a decoder that crashes in a worker process."""
    if any(Path(record.img_path).read_bytes() == b'crash' for record in records):
        os._exit(11)
    return file_audit.audit_files(records)


def test_a_decoder_that_crashes_is_a_finding(check, data, monkeypatch):
    bad = sorted((data / 'coco/train2017').iterdir())[2]
    bad.write_bytes(b'crash')
    monkeypatch.setattr(dataset_audit, 'audit_files', look_at_or_crash)
    code, found = check('det', workers=2)
    assert code == 1 and [f[:3] for f in found] == [('train', 'unreadable', str(bad))]
    assert 'its decoder crashes' in found[0][3]


def rename(index, name):
    """Changes the file name of an image's record."""
    return lambda content: content['images'][index].update(file_name=str(name))


@pytest.fixture
def outside(data, tmp_path):
    """A good image outside of the data root."""
    return shutil.copy(sorted((data / 'coco/train2017').iterdir())[1], tmp_path / 'secret.jpg')


@pytest.mark.parametrize('name', ['/dev/zero', '{outside}', '../../../secret.jpg', 'link.jpg'])
def test_files_outside_of_the_data_root(check, data, outside, name):
    images = data / 'coco/train2017'
    (images / 'link.jpg').symlink_to(outside)
    change(data / COCO, rename(0, name.format(outside=outside)))
    code, found = check('det', workers=2)
    assert code == 1 and [f[1] for f in found] == ['outside']
    assert found[0][2].endswith(name.format(outside=outside))
    assert f"outside of the folders of its data set, '{data}/coco/'" in found[0][3]


def test_links_to_data_that_lies_elsewhere(check, data, tmp_path):
    """A data root, a folder of images, and a file beside another that are links."""
    disk = tmp_path / 'disk'
    disk.mkdir()
    shutil.move(data / 'coco/train2017', disk / 'pictures')
    (data / 'coco/train2017').symlink_to(disk / 'pictures')
    images = sorted((disk / 'pictures').iterdir())
    images[0].rename(images[0].with_suffix('.orig'))
    images[0].symlink_to(images[0].with_suffix('.orig'))
    shutil.move(data, disk / 'set')
    data.symlink_to(disk / 'set')
    assert check('det') == (0, [])


def test_what_is_no_regular_file(check, data, monkeypatch):
    images = sorted((data / 'coco/train2017').iterdir())
    images[0].unlink()
    os.mkfifo(images[0])
    with images[1].open('ab') as file:
        os.truncate(file.fileno(), 2**20 + 1)
    monkeypatch.setenv('MMLINATTN_MAX_DOWNLOAD_GIB', str(1 / 1024))
    code, found = check('det', workers=2)
    assert code == 1 and {(k, w) for _, k, w, _ in found} == {
        ('unreadable', str(path)) for path in images[:2]
    }
    assert 'is a named pipe, not a regular file' in found[0][3]
    assert 'MMLINATTN_MAX_DOWNLOAD_GIB sets the limit' in found[1][3]


def test_annotations_and_maps_that_are_named_pipes(check, data):
    (data / COCO).unlink()
    os.mkfifo(data / COCO)
    code, found = check('det')
    assert code == 1 and 'cannot be read: [Errno 22] is a named pipe' in found[0][3]
    path = sorted((data / 'ade/annotations/training').iterdir())[0]
    path.unlink()
    os.mkfifo(path)
    code, found = check('seg')
    assert code == 1 and found[0][1:3] == ('unreadable', str(path))


def test_no_memory_for_an_image(check, data, monkeypatch):
    bad = str(sorted((data / 'coco/train2017').iterdir())[2])

    def imfrombytes(content, *args, **kwargs):
        if content == Path(bad).read_bytes():
            raise MemoryError
        return mmcv.imfrombytes(content, *args, **kwargs)

    monkeypatch.setattr(file_audit, 'mmcv', SimpleNamespace(imfrombytes=imfrombytes))
    code, found = check('det')
    assert code == 1 and [f[1:] for f in found] == [('unreadable', bad, 'MemoryError')]


def test_maps_that_train_nothing_or_are_no_labels(check, data):
    maps = sorted((data / 'ade/annotations/training').iterdir())
    labels = cv2.imread(str(maps[0]), cv2.IMREAD_UNCHANGED)
    cv2.imwrite(str(maps[0]), np.repeat(labels[..., None], 3, 2))  # grey, but three channels
    cv2.imwrite(str(maps[1]), np.full_like(labels, 255))
    palette = Image.fromarray(labels, 'P')  # as those of VOC: its indices are the labels
    palette.putpalette(np.random.default_rng(0).integers(0, 256, 768, np.uint8).tobytes())
    palette.save(maps[2])
    code, found = check('seg')
    assert code == 1 and [(k, w) for _, k, w, _ in found] == [
        ('mask', str(maps[0])), ('mask', str(maps[1]))
    ]  # fmt: skip
    assert 'has 3 channels' in found[0][3] and 'has ignored pixels only' in found[1][3]


def turn(path, orientation, size=(64, 48)):
    """Writes an image of this width and height with an EXIF orientation."""
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), np.uint8)
    Image.fromarray(pixels).save(path, exif=exif)


@pytest.mark.parametrize(
    'orientation, size, annotated, what',
    [
        (6, (64, 48), (48, 64), 'from (48, 64) to (64, 48) when loaded, its annotation has the'),
        (6, (64, 48), (64, 48), None),
        (1, (64, 48), (48, 64), None),
        (3, (64, 48), (48, 64), 'does not tell for which of both it was made'),
        (6, (64, 64), (64, 64), 'does not tell for which of both it was made'),
    ],
)
def test_images_that_loading_turns(check, data, orientation, size, annotated, what):
    path = sorted((data / 'coco/train2017').iterdir())[0]
    turn(path, orientation, size)

    def resize(content):
        content['images'][0].update(height=annotated[0], width=annotated[1])
        number = content['images'][0]['id']
        content['annotations'] = [a for a in content['annotations'] if a['image_id'] != number]

    change(data / COCO, resize)
    code, found = check('det')
    assert [f[1:3] for f in found] == ([('orientation', str(path))] if what else [])
    assert code == bool(what) and all(what in f[3] for f in found)


def test_images_that_are_turned_unlike_their_maps(check, data):
    image = sorted((data / 'ade/images/training').iterdir())[0]
    seg_map = sorted((data / 'ade/annotations/training').iterdir())[0]
    turn(image, 6)
    labels = cv2.imread(str(seg_map), cv2.IMREAD_UNCHANGED)[:48]
    cv2.imwrite(str(seg_map), labels)
    code, found = check('seg')
    assert code == 1 and [f[1:3] for f in found] == [('orientation', str(image))]
    assert 'its map has the size before' in found[0][3]
    cv2.imwrite(str(seg_map), np.rot90(labels, -1))
    assert check('seg') == (0, [])
    # Loaded without a turn, a map of the size before fits.
    cv2.imwrite(str(seg_map), labels)
    still = 'train_dataloader.dataset.pipeline.0.color_type=color_ignore_orientation'
    assert check('seg', still) == (0, [])
