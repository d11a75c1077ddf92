"""Shapes: pictures and labels agree in all layouts, seeds decide, nothing of the user's is lost."""

import hashlib
import json
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pytest
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO

from mmlinattn import __main__ as program
from mmlinattn.datasets import shapes
from mmlinattn.datasets.shapes import layouts

SMALL = dict(num_train=6, num_val=4, image_size=64, seed=3)
COUNTS = dict(train=6, val=4)
PICTURES = [(split, number) for split in COUNTS for number in range(1, COUNTS[split] + 1)]


def generate(root, **changes):
    return shapes.generate(root, **{**SMALL, **changes})


@pytest.fixture(scope='module')
def small(tmp_path_factory):
    """A small set that the tests only read."""
    return generate(tmp_path_factory.mktemp('small') / 'shapes')


@pytest.fixture
def own(small, tmp_path):
    """A copy of the small set that a test may change."""
    return Path(shutil.copytree(small, tmp_path / 'shapes'))


def contents(root):
    files = [file for file in Path(root).rglob('*') if file.is_file()]
    return {str(file.relative_to(root)): file.read_bytes() for file in files}


def sample_of(split, number):
    seeds = [SMALL['seed'], list(COUNTS).index(split), number - 1]
    return shapes.draw_image(np.random.default_rng(seeds), SMALL['image_size'])


def files_of(root, split, number):
    """Of one picture: in COCO's, ADE20K's and Cityscapes' layout, and the labels of the latter."""
    ade = dict(train='training', val='validation')[split]
    city = f'{split}/shapes/shapes_{number:06d}_000000'
    return (
        root / f'coco/{split}2017/{number:012d}.jpg',
        root / f'ade/images/{ade}/ADE_{split}_{number:08d}.jpg',
        root / f'cityscapes/leftImg8bit/{city}_leftImg8bit.png',
        root / f'ade/annotations/{ade}/ADE_{split}_{number:08d}.png',
        root / f'cityscapes/gtFine/{city}_gtFine_labelTrainIds.png',
    )


def test_masks_of_a_picture_are_its_labels():
    seen = set()
    for seed in range(40):
        sample = shapes.draw_image(np.random.default_rng(seed), 64)
        assert sample.image.shape == (64, 64, 3) and sample.image.dtype == np.uint8
        assert sample.semantic.dtype == np.uint8 and 1 <= len(sample.instances) <= 4
        merged = np.zeros((64, 64), np.uint8)
        for label, mask in sample.instances:
            assert mask.dtype == bool and mask.any() and not merged[mask].any()
            merged[mask] = label
            seen.add(label)
        np.testing.assert_array_equal(merged, sample.semantic)
    assert seen == {1, 2, 3, 4, 5}


def test_a_seed_gives_the_same_shapes_on_all_days():
    """Where this digest changes, raise VERSION."""
    digest = hashlib.sha256()
    for seed in range(8):
        digest.update(shapes.draw_image(np.random.default_rng(seed), 64).semantic)
    assert (layouts.VERSION, digest.hexdigest()[:16]) == (2, 'a373fc46ed9a5bcc')


def test_the_same_seed_gives_the_same_files_and_seeds_differ(small, tmp_path):
    assert contents(generate(tmp_path / 'again')) == contents(small)
    other = generate(tmp_path / 'other', seed=4)
    pictures = {files_of(root, *p)[0].read_bytes() for root in (small, other) for p in PICTURES}
    assert len(pictures) == 20
    more = generate(tmp_path / 'more', num_train=7)
    for picture in PICTURES:
        found, expected = (files_of(root, *picture)[0].read_bytes() for root in (more, small))
        assert found == expected, 'more images change the first ones'


def test_layouts_hold_the_same_pictures_and_labels(small):
    for picture in PICTURES:
        sample = sample_of(*picture)
        coco, ade, city, ade_labels, city_labels = (
            cv2.imread(str(file), cv2.IMREAD_UNCHANGED) for file in files_of(small, *picture)
        )
        # JPEG; swapped channels are far above.
        assert np.abs(coco - sample.image[..., ::-1].astype(float)).mean() < 12
        np.testing.assert_array_equal(ade, coco)
        np.testing.assert_array_equal(city, coco)
        np.testing.assert_array_equal(city_labels, sample.semantic)
        np.testing.assert_array_equal(ade_labels, sample.semantic + 1)
    assert len(contents(small / 'coco')) == 10 + 2
    assert len(contents(small / 'ade')) == len(contents(small / 'cityscapes')) == 20


@pytest.mark.parametrize('split', COUNTS)
def test_coco_annotations_are_the_pixels(small, split):
    coco = COCO(str(small / f'coco/annotations/instances_{split}2017.json'))
    names = enumerate(['circle', 'square', 'triangle', 'star', 'cross'], 1)
    assert [(c['id'], c['name']) for c in coco.dataset['categories']] == list(names)
    assert len(coco.anns) == len(coco.dataset['annotations']), 'annotation ids repeat'
    assert sorted(coco.imgs) == list(range(1, COUNTS[split] + 1))
    for number, image in coco.imgs.items():
        assert (image['width'], image['height']) == (64, 64)
        assert image['file_name'] == files_of(small, split, number)[0].name
        instances = sample_of(split, number).instances
        annotations = coco.imgToAnns[number]
        assert [a['category_id'] for a in annotations] == [i.label for i in instances]
        for annotation, (_, mask) in zip(annotations, instances):
            np.testing.assert_array_equal(coco.annToMask(annotation), mask)
            ys, xs = np.nonzero(mask)
            extent = [xs.min(), ys.min(), np.ptp(xs) + 1, np.ptp(ys) + 1]
            assert annotation['bbox'] == extent and annotation['area'] == mask.sum()
            assert annotation['iscrowd'] == 0


@pytest.mark.parametrize('holes', [[], [(10, 12, 5, 4)], [(10, 12, 1, 1), (20, 22, 6, 3)]])
def test_polygons_keep_parts_and_holes(holes):
    mask = np.zeros((40, 50), bool)
    mask[5:30, 4:32] = mask[34, 45] = mask[0:4, 40:50] = True
    for x, y, width, height in holes:
        mask[y : y + height, x : x + width] = False
    rles = coco_mask.frPyObjects(layouts.polygons_of(mask), *mask.shape)
    np.testing.assert_array_equal(coco_mask.decode(coco_mask.merge(rles)), mask)
    (pixel,) = layouts.polygons_of(mask[34:35, 45:46])
    assert np.mean(pixel) == 0.5, 'the middle of a pixel'


@pytest.mark.parametrize('split', COUNTS)
def test_imagenet_has_a_crop_of_every_shape_and_a_folder_of_every_class(small, split):
    coco = COCO(str(small / f'coco/annotations/instances_{split}2017.json'))
    assert {f.name for f in (small / 'imagenet' / split).iterdir()} == set(shapes.CLASSES)
    expected = Counter()
    for number, annotations in coco.imgToAnns.items():
        for i, annotation in enumerate(annotations, 1):
            name = coco.cats[annotation['category_id']]['name']
            crop = cv2.imread(str(small / f'imagenet/{split}/{name}/{number:06d}_{i}.jpg'))
            assert crop.shape == (64, 64, 3)
            expected[name] += 1
    assert len(contents(small / 'imagenet' / split)) == sum(expected.values())
    counts = json.loads((small / 'shapes.json').read_text())['counts'][split]
    assert counts['images'] == COUNTS[split]
    assert counts['instances_by_class'] == {name: expected[name] for name in shapes.CLASSES}


def test_an_up_to_date_set_is_left_alone(own, capsys, monkeypatch):
    monkeypatch.setattr(layouts, 'draw_image', None)
    times = {path: path.stat().st_mtime_ns for path in (own, *own.rglob('*'))}
    assert generate(own) == own and 'up to date' in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in (own, *own.rglob('*'))} == times


@pytest.mark.parametrize('name, value', [('seed', 9), ('num_val', 5)])
def test_other_parameters_are_refused(own, small, name, value):
    with pytest.raises(FileExistsError) as error:
        generate(own, **{name: value})
    expected = f'{own} is a Shapes set with other parameters: {name} is {SMALL[name]} instead of'
    assert str(error.value).startswith(f'{expected} {value}.') and 'remove it' in str(error.value)
    assert contents(own) == contents(small)


def test_what_is_not_a_set_is_never_touched(own, tmp_path):
    (own / 'thesis.txt').write_text('mine')
    (tmp_path / 'other').mkdir()
    (tmp_path / 'other/shapes.json').write_text('{"format": "geometry", "parameters": {}}')
    (tmp_path / 'empty').mkdir()
    (tmp_path / 'file').write_text('mine')
    before = contents(tmp_path)
    for root in (own, tmp_path / 'other', tmp_path / 'empty', tmp_path / 'file'):
        with pytest.raises(FileExistsError, match=str(root)):
            generate(root, seed=9)
    assert contents(tmp_path) == before


def fail(*args):
    raise RuntimeError('failed')


def test_a_failure_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(layouts, '_write_image', fail)
    with pytest.raises(RuntimeError, match='^failed$'):
        generate(tmp_path / 'new')
    assert list(tmp_path.iterdir()) == []


def test_files_that_come_in_between_are_kept(tmp_path, monkeypatch):
    root, write_set = tmp_path / 'shapes', layouts.write_set

    def intrude(*args):
        write_set(*args)
        assert not root.exists(), 'the set appears only when complete'
        root.mkdir()
        (root / 'thesis.txt').write_text('mine')

    monkeypatch.setattr(layouts, 'write_set', intrude)
    with pytest.raises(OSError, match=str(root)):
        generate(root)
    assert contents(tmp_path) == {'shapes/thesis.txt': b'mine'}


def test_bad_arguments(tmp_path):
    bad = dict(num_train='6', num_val=0, image_size=31.0, seed=-1)
    for name, value in bad.items():
        with pytest.raises(ValueError, match=f'^{name} must .* got {value!r}$'):
            generate(tmp_path / 'shapes', **{name: value})
    assert list(tmp_path.iterdir()) == []


def options(**changes):
    return [f'--{name.replace("_", "-")}={value}' for name, value in {**SMALL, **changes}.items()]


def test_command_line(small, tmp_path, capsys):
    root = str(tmp_path / 'shapes')
    assert program.main(['shapes', root, *options()]) == 0 and contents(root) == contents(small)
    assert 'train: 6 images' in capsys.readouterr().out
    for changes in (dict(seed=9), dict(image_size=8)):
        with pytest.raises(SystemExit, match='^2$'):
            program.main(['shapes', root, *options(**changes)])
        captured = capsys.readouterr()
        assert captured.out == '' and captured.err.count('\n') == 1
        assert captured.err.startswith('error: ')


@pytest.mark.slow
@pytest.mark.parametrize('number, code', [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_process_leaves_nothing(root, tmp_path, number, code):
    command = [sys.executable, '-m', 'mmlinattn', 'shapes', str(tmp_path / 'shapes')]
    # Shells start background jobs with SIGINT ignored.
    preexec = partial(signal.signal, signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        [*command, '--num-train=5000'], cwd=root, text=True, preexec_fn=preexec,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 120
        while not list(tmp_path.glob('.shapes.partial-*/coco/train2017/*.jpg')):
            assert process.poll() is None and time.monotonic() < deadline, process.communicate()
            time.sleep(0.02)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == code and 'Traceback' not in err
    assert list(tmp_path.iterdir()) == []
