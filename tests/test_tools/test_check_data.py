"""``mmlinattn check-data``: every fault is found, and nothing where there is none."""

import json
import shutil

import cv2
import numpy as np
import pytest
from PIL import ExifTags, Image

from mmlinattn.datasets import shapes

from .conftest import CONFIGS, FOLDERS

COCO = 'coco/annotations/instances_train2017.json'


@pytest.fixture
def data(tmp_path):
    root = tmp_path / 'shapes'
    return shapes.generate(root, num_train=6, num_val=3, image_size=64)


@pytest.fixture
def check(root, data, run, capsys):
    """check(task, ...) -> exit code and printed lines: findings, then the summary."""

    def call(task, *options, splits=('train', 'val', 'test'), debug=True):
        where = [f'{s}_dataloader.dataset.data_root={data}/{FOLDERS[task]}'
                 for s in ('train', 'val', 'test')]  # fmt: skip
        capsys.readouterr()
        code = run('check-data', root / CONFIGS[task], '--splits', *splits,
                   '--cfg-options', *where, *options, debug=debug)  # fmt: skip
        lines = capsys.readouterr().out.splitlines()
        return code, [line for line in lines if line and 'default scope' not in line]

    return call


@pytest.mark.parametrize('task', CONFIGS)
def test_nothing_is_found_in_shapes(check, task):
    code, lines = check(task)
    train, val = (20, 10) if task == 'cls' else (6, 3)
    wanted = [f'train: {train} samples', f'val: {val} samples', 'nothing found']
    assert code == 0 and lines[-3:] == wanted


def change(path, function):
    content = json.loads(path.read_text())
    function(content)
    path.write_text(json.dumps(content))


def test_images_and_annotations_of_a_detector(check, data):
    images = sorted((data / 'coco/train2017').iterdir())
    images[0].write_bytes(images[0].read_bytes()[:-100])
    images[1].write_bytes(b'no image')
    images[2].unlink()
    cv2.imwrite(str(images[3]), np.zeros((64, 32, 3), np.uint8))

    def spoil(content):
        content['annotations'][0]['bbox'][2] = 0
        content['annotations'][1]['category_id'] = 99
        content['images'][4]['file_name'] = '\x1b[2K.jpg'

    change(data / COCO, spoil)
    code, lines = check('det')
    assert code == 1
    for wanted in (
        f'train, box without extent: {data / COCO}: annotation 1: bbox is [',
        f'train, unknown id: {data / COCO}: annotation 2: no category has the id 99',
        f'train, unreadable: {images[1]}: cannot be loaded: damaged, or no image',
        f'train, unreadable: {images[2]}: does not exist; {images[2].parent} has ',
        f'train, size: {images[3]}: is 64 high and 32 wide, its annotation says (64, 64)',
        f'{images[0].parent}/\\x1b[2K.jpg: does not exist',
        'train: 6 samples',
    ):
        assert sum(wanted in line for line in lines) == 1, wanted
    # OpenCV refuses a truncated JPEG from 4.11 on, before it filled the rest with grey.
    (line,) = (line for line in lines if f'{images[0]}: ' in line)
    assert 'image file is truncated' in line


def test_maps_of_a_segmentor(check, data):
    maps = sorted((data / 'ade/annotations/training').iterdir())
    labels = cv2.imread(str(maps[0]), cv2.IMREAD_UNCHANGED)
    cv2.imwrite(str(maps[0]), labels[:32])
    cv2.imwrite(str(maps[2]), np.repeat(labels[..., None], 3, 2))  # grey, but three channels
    cv2.imwrite(str(maps[3]), np.full_like(labels, 255))
    palette = Image.fromarray(labels, 'P')  # as those of VOC: its indices are the labels
    palette.putpalette(np.random.default_rng(0).integers(0, 256, 768, np.uint8).tobytes())
    palette.save(maps[4])
    labels[0, 0] = 77
    cv2.imwrite(str(maps[1]), labels)
    code, lines = check('seg')
    assert code == 1
    beginnings = [
        f'train, mask: {maps[0]}: has the size (32, 64), its image',
        f'train, class: {maps[1]}: has labels [76], known are 0 to ',
        f'train, mask: {maps[2]}: has 3 channels',
        f'train, mask: {maps[3]}: has ignored pixels only',
        'train: 6 samples',
    ]
    assert all(map(str.startswith, lines, beginnings)), lines


def test_a_split_that_reads_the_files_of_the_training_set(check):
    code, lines = check('seg', 'val_dataloader.dataset.data_prefix.img_path=images/training',
                        'val_dataloader.dataset.data_prefix.seg_map_path=annotations/training',
                        splits=['train', 'val'])  # fmt: skip
    assert code == 1 and lines == [
        'val, duplicate: val_dataloader: reads the images that are trained: its scores say nothing '
        'of other images',
        'train: 6 samples',
        'val: 1 x duplicate',
    ]


def test_images_that_are_not_read(check, data):
    image = sorted((data / 'ade/images/training').iterdir())[0]
    image.rename(image.with_suffix('.PNG'))
    (data / 'ade/annotations/training/more.png').touch()
    lines = check('seg', splits=['train'])[1]
    assert ': is one of 2 files that are not read: no image has this name' in lines[0]
    assert lines[1].startswith(f'train, unread: {image.with_suffix(".PNG")}: is one of 1 files')
    assert lines[2:] == ['train: 5 samples', 'train: 2 x unread']


def test_images_that_mmdetection_leaves_out(check, data):
    change(data / COCO, lambda content: content['images'][0].update(height=96, width=96))
    lines = check('det', 'train_dataloader.dataset.filter_cfg.min_size=65', splits=['train'])[1]
    assert ': a side is below 65 pixels, as in 5 of 6 images: training leaves them' in lines[0]
    assert lines[2:4] == ['train, left out by filter_cfg: 5 samples', 'train: 1 samples']


def test_links_to_data_that_lies_elsewhere(check, data, tmp_path):
    """A data root, and a folder of images, that are links."""
    disk = tmp_path / 'disk'
    disk.mkdir()
    shutil.move(data / 'coco/train2017', disk / 'pictures')
    (data / 'coco/train2017').symlink_to(disk / 'pictures')
    shutil.move(data, disk / 'set')
    data.symlink_to(disk / 'set')
    assert check('det')[0] == 0


def test_images_that_loading_turns(check, data):
    image = sorted((data / 'ade/images/training').iterdir())[0]
    seg_map = sorted((data / 'ade/annotations/training').iterdir())[0]
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    pixels = np.random.default_rng(0).integers(0, 256, (48, 64, 3), np.uint8)
    Image.fromarray(pixels).save(image, exif=exif)
    labels = cv2.imread(str(seg_map), cv2.IMREAD_UNCHANGED)[:48]
    cv2.imwrite(str(seg_map), labels)
    code, lines = check('seg')
    assert code == 1 and lines[0].startswith(f'train, mask: {seg_map}: has the size (48, 64), its')
    # Loaded without a turn, a map of the size before fits.
    still = 'train_dataloader.dataset.pipeline.0.color_type=color_ignore_orientation'
    assert check('seg', still)[0] == 0
