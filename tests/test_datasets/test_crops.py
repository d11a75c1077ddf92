"""Crops of the objects of a detection set."""

import json
import runpy
import subprocess
import sys
from collections import Counter
from pathlib import Path

import cv2
import numpy as np
import pytest

from mmlinattn.datasets.shapes.layouts import square_crop

TOOL = Path(__file__).parents[2] / 'tools/dataset_converters/coco_crops.py'
DESCRIPTION = 'crops.json'
BOXES = [  # class, x, y, width, height on a picture of 60 x 40 (width x height)
    ('cell', 10, 10, 8, 4),
    ('cell', 0, 30, 4, 10),
    ('grain', 50, 2, 10, 10),
    ('grain', 5, 5, 50, 30),
]


def picture() -> np.ndarray:
    """Every pixel says where it is: (x, y, 0)."""
    ys, xs = np.mgrid[:40, :60]
    return np.stack([xs, ys, 0 * xs], -1).astype(np.uint8)


@pytest.fixture
def source(tmp_path):
    """A set of one picture, with every box of BOXES, in each of two annotation files."""
    folder = tmp_path / 'source'
    (folder / 'images').mkdir(parents=True)
    (folder / 'annotations').mkdir()
    cv2.imwrite(str(folder / 'images/one.png'), picture())
    categories = [dict(id=7, name='cell'), dict(id=3, name='grain'), dict(id=4, name='none')]
    ids = {category['name']: category['id'] for category in categories}
    coco = dict(
        images=[dict(id=1, file_name='one.png')],
        categories=categories,
        annotations=[
            dict(id=i, image_id=1, category_id=ids[name], bbox=box)
            for i, (name, *box) in enumerate(BOXES)
        ],
    )
    for name in ('train', 'val'):
        (folder / f'annotations/{name}.json').write_text(json.dumps(coco))
    return folder


def crop_objects(source, root, splits, size=64, scale=1.25, max_per_class=None, seed=0):
    written = runpy.run_path(str(TOOL))['crop_objects']
    written(source, root, splits, size, scale, max_per_class or {}, seed)
    return root


@pytest.mark.parametrize('box', [box for _, *box in BOXES])
def test_a_crop_is_a_square_around_its_box_inside_the_picture(box):
    x, y, width, height = box
    side = min(round(1.25 * max(width, height)), 40)
    crop = square_crop(picture(), box, side)  # at the size that it has: no pixel changes
    assert crop.shape == (side, side, 3)
    left, top = map(int, crop[0, 0, :2])
    assert np.array_equal(crop, picture()[top : top + side, left : left + side])
    # It holds the box, as far as the picture is high enough, and is centred unless at a border.
    for start, length, first, full in ((x, width, left, 60), (y, height, top, 40)):
        if length <= side:
            assert first <= start and start + length <= first + side
        off_centre = abs(2 * start + length - 2 * first - side)
        assert off_centre <= 2 or first in (0, full - side)


def test_crops_lie_in_the_folder_of_their_class(source, tmp_path):
    splits = dict(train=['train'], val=['val'])
    root = crop_objects(source, tmp_path / 'out', splits, size=16)
    found = {path.relative_to(root).as_posix() for path in root.rglob('*.jpg')}
    assert found == {
        f'{split}/{name}/one_{i}.jpg' for split in splits for i, (name, *_) in enumerate(BOXES)
    }
    # Readers number the folders of all classes.
    assert sorted(path.name for path in (root / 'val').iterdir()) == ['cell', 'grain', 'none']
    crop = cv2.imread(str(root / 'train/grain/one_2.jpg')).astype(float)
    wanted = square_crop(picture(), BOXES[2][1:], 16).astype(float)
    assert abs(crop - wanted).mean() < 4  # JPEG


def test_numbers_are_limited_a_class_and_the_same_set_is_left_as_it_is(source, tmp_path):
    options = dict(splits=dict(train=['train', 'val']), size=8, max_per_class=dict(train=1))
    root = crop_objects(source, tmp_path / 'a', **options)
    again = crop_objects(source, tmp_path / 'b', **options)
    files = [sorted(p.relative_to(r) for p in r.rglob('*.jpg')) for r in (root, again)]
    assert files[0] == files[1]
    assert Counter(path.parent.name for path in files[0]) == dict(cell=1, grain=1)
    assert json.loads((root / DESCRIPTION).read_text())['counts'] == {
        'train': dict(cell=1, grain=1)
    }
    stamp = (root / DESCRIPTION).stat().st_mtime_ns
    crop_objects(source, root, **options)
    assert (root / DESCRIPTION).stat().st_mtime_ns == stamp
    with pytest.raises(FileExistsError, match='is a crops set with other parameters: size'):
        crop_objects(source, root, **dict(options, size=9))
    seeds = {
        tuple(
            sorted(
                path.name
                for path in crop_objects(source, tmp_path / f's{i}', **options, seed=i).rglob('*_*')
            )
        )
        for i in range(8)
    }
    assert len(seeds) > 1


def test_bad_data_leaves_nothing(source, tmp_path):
    file = source / 'annotations/train.json'
    coco = json.loads(file.read_text())
    coco['annotations'][2]['bbox'][2] = 0
    file.write_text(json.dumps(coco))
    with pytest.raises(ValueError, match='train.json: annotation 2 has the box'):
        crop_objects(source, tmp_path / 'out', dict(train=['train']))
    (source / 'images/one.png').unlink()
    with pytest.raises(FileNotFoundError, match=r'one.png is missing or no picture'):
        crop_objects(source, tmp_path / 'out', dict(val=['val']))
    assert [path.name for path in tmp_path.iterdir()] == ['source']


def test_crops_that_cannot_be_written_and_crowds(source, tmp_path):
    file = source / 'annotations/val.json'
    coco = json.loads(file.read_text())
    coco['annotations'][0]['iscrowd'] = 1
    file.write_text(json.dumps(coco))
    root = crop_objects(source, tmp_path / 'out', dict(val=['val']))
    assert len([*root.rglob('*.jpg')]) == len(BOXES) - 1
    name = 'x' * 250 + '.png'
    (source / 'images/one.png').rename(source / 'images' / name)
    coco['images'][0]['file_name'], coco['annotations'][0]['id'] = name, 100_000
    coco['annotations'][0]['iscrowd'] = 0
    file.write_text(json.dumps(coco))
    with pytest.raises(OSError, match='File name too long'):
        crop_objects(source, tmp_path / 'long', dict(val=['val']))
    assert not (tmp_path / 'long').exists()


@pytest.mark.parametrize('name, value', [('size', 0), ('scale', 0), ('max_per_class', dict(val=0))])
def test_numbers_that_are_not_positive(source, tmp_path, name, value):
    with pytest.raises(ValueError, match=f'{name}.* must be .*positive.*, got 0'):
        crop_objects(source, tmp_path / 'out', dict(val=['val']), **{name: value})


def test_script(source, tmp_path):
    def script(*words):
        command = [sys.executable, TOOL, *words]
        return subprocess.run([*map(str, command)], capture_output=True, text=True)

    done = script(source, tmp_path / 'out', '--size', 8, '--max-per-class', 1)
    assert done.returncode == 0, done.stderr
    assert len([*(tmp_path / 'out/train').rglob('*.jpg')]) == 2
    assert len([*(tmp_path / 'out/val').rglob('*.jpg')]) == 4
    failed = script(tmp_path, tmp_path / 'none')
    assert failed.returncode == 2 and failed.stderr.startswith('error: FileNotFoundError')


@pytest.mark.parametrize('class_name, file_name, message', [
    ('../evil', 'one.png', r"the class '../evil' cannot be the name of a folder"),
    ('cell', '../../secret.png', r"train.json: '../../secret.png' is outside of the folders"),
])  # fmt: skip
def test_names_that_lead_out_of_the_folders(source, tmp_path, class_name, file_name, message):
    file = source / 'annotations/train.json'
    coco = json.loads(file.read_text())
    coco['categories'][0]['name'], coco['images'][0]['file_name'] = class_name, file_name
    file.write_text(json.dumps(coco))
    with pytest.raises(ValueError, match=message):
        crop_objects(source, tmp_path / 'out', dict(train=['train']))
    assert not (tmp_path / 'out').exists()


def test_boxes_of_two_files_with_one_name(source, tmp_path):
    """Both files of the set have the same picture and ids."""
    with pytest.raises(ValueError, match='two boxes would be one_'):
        crop_objects(source, tmp_path / 'out', dict(val=['train', 'val']))
