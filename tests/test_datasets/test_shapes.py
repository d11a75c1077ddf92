"""Tests of the Shapes data set."""

import doctest
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import cv2
import numpy as np
import pytest
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO

from mmlinattn.datasets import shapes

SMALL = {'num_train': 6, 'num_val': 4, 'image_size': 64, 'seed': 3}
COUNTS = {'train': 6, 'val': 4}
ADE = {'train': 'training', 'val': 'validation'}
SPLIT_NUMBERS = [('train', n) for n in range(1, 7)] + [('val', n) for n in range(1, 5)]


@pytest.fixture(scope='module')
def small(tmp_path_factory):
    """A small set that the tests only read."""
    return shapes.generate(tmp_path_factory.mktemp('small') / 'shapes', workers=1, **SMALL)


@pytest.fixture
def own(small, tmp_path):
    """A copy of the small set that a test may change."""
    return Path(shutil.copytree(small, tmp_path / 'shapes'))


def contents(root):
    return {
        str(file.relative_to(root)): file.read_bytes()
        for file in Path(root).rglob('*')
        if file.is_file()
    }


def pictures(root, split, number):
    return [
        root / f'coco/{split}2017/{number:012d}.jpg',
        root / f'ade/images/{ADE[split]}/ADE_{split}_{number:08d}.jpg',
        root / f'cityscapes/leftImg8bit/{split}/shapes/shapes_{number:06d}_000000_leftImg8bit.png',
    ]


def ade_map(root, split, number):
    file = root / f'ade/annotations/{ADE[split]}/ADE_{split}_{number:08d}.png'
    return cv2.imread(str(file), cv2.IMREAD_UNCHANGED)


def city_map(root, split, number):
    file = root / (
        f'cityscapes/gtFine/{split}/shapes/shapes_{number:06d}_000000_gtFine_labelTrainIds.png'
    )
    return cv2.imread(str(file), cv2.IMREAD_UNCHANGED)


def load_coco(root, split):
    return COCO(str(root / f'coco/annotations/instances_{split}2017.json'))


def sample_of(split, number):
    seeds = [SMALL['seed'], ['train', 'val'].index(split), number - 1]
    return shapes.draw_image(np.random.default_rng(seeds), SMALL['image_size'])


def rasterise(polygons, size):
    return coco_mask.decode(coco_mask.merge(coco_mask.frPyObjects(polygons, *size))).astype(bool)


# Drawing


def test_draw_image_is_consistent():
    labels = Counter()
    for seed in range(40):
        sample = shapes.draw_image(np.random.default_rng(seed), 64)
        assert sample.image.shape == (64, 64, 3) and sample.image.dtype == np.uint8
        assert sample.semantic.shape == (64, 64) and sample.semantic.dtype == np.uint8
        assert 1 <= len(sample.instances) <= 4
        merged = np.zeros_like(sample.semantic)
        for label, mask in sample.instances:
            assert mask.dtype == bool and mask.any()
            assert not merged[mask].any(), 'masks overlap'
            merged[mask] = label
            labels[label] += 1
        np.testing.assert_array_equal(merged, sample.semantic)
    assert set(labels) == {1, 2, 3, 4, 5}


def test_draw_image_depends_on_the_generator_alone():
    first, again, other = (shapes.draw_image(np.random.default_rng(seed), 64) for seed in (5, 5, 6))
    np.testing.assert_array_equal(first.image, again.image)
    np.testing.assert_array_equal(first.semantic, again.semantic)
    assert (first.image != other.image).any()


def test_shapes_stand_out_from_what_surrounds_them():
    distances = []
    for seed in range(40):
        sample = shapes.draw_image(np.random.default_rng(seed), 128)
        image = sample.image.astype(float)
        for _, mask in sample.instances:
            wide = cv2.dilate(mask.astype(np.uint8), np.ones((9, 9), np.uint8)) > 0
            ring = wide & (sample.semantic == 0)
            if ring.any():
                color = np.median(image[ring], axis=0)
                distances.append(np.median(np.linalg.norm(image[mask] - color, axis=1)))
    assert len(distances) > 60
    assert np.quantile(distances, 0.1) > 70


def test_earlier_shapes_stay_mostly_visible(monkeypatch):
    drawn = []
    coverage = shapes._coverage

    def record(*args):
        drawn.append(coverage(*args))
        return drawn[-1]

    monkeypatch.setattr(shapes, '_coverage', record)
    overlapped = 0
    for seed in range(40):
        drawn.clear()
        for _, mask in shapes.draw_image(np.random.default_rng(seed), 64).instances:
            # The whole shape is the smallest one drawn that holds the visible part.
            whole = min((c >= 0.5).sum() for c in drawn if (c >= 0.5)[mask].all())
            assert mask.sum() >= 0.5 * whole
            overlapped += mask.sum() < whole
    assert overlapped > 5


# Files


def test_same_files_whatever_the_number_of_workers(small, tmp_path):
    other = shapes.generate(tmp_path / 'other', workers=2, **SMALL)
    expected, found = contents(small), contents(other)
    assert expected.keys() == found.keys()
    assert [name for name in expected if expected[name] != found[name]] == []


def test_seeds_and_splits_differ(small, tmp_path):
    other = shapes.generate(tmp_path / 'other', workers=1, **{**SMALL, 'seed': 4})
    images = [
        pictures(root, split, n)[0].read_bytes()
        for root in (small, other)
        for split, n in SPLIT_NUMBERS
    ]
    assert len(set(images)) == 20


def test_more_images_do_not_change_the_first_ones(small, tmp_path):
    other = shapes.generate(tmp_path / 'other', workers=1, **{**SMALL, 'num_train': 7})
    for split, n in SPLIT_NUMBERS:
        assert (
            pictures(other, split, n)[0].read_bytes() == pictures(small, split, n)[0].read_bytes()
        )


def test_layouts_hold_the_same_pictures(small):
    for split, number in SPLIT_NUMBERS:
        first, *others = pictures(small, split, number)
        image = cv2.imread(str(first))
        assert image.shape == (64, 64, 3)
        drawn = sample_of(split, number).image[..., ::-1].astype(float)
        assert np.abs(image - drawn).mean() < 12  # JPEG; swapped channels are far above
        for other in others:
            np.testing.assert_array_equal(cv2.imread(str(other)), image)
    assert len(contents(small / 'coco')) == 10 + 2
    assert len(contents(small / 'ade')) == len(contents(small / 'cityscapes')) == 20


def test_pictures_are_hard_links_where_possible(small, tmp_path):
    probe = tmp_path / 'probe'
    probe.touch()
    try:
        os.link(probe, tmp_path / 'link')
    except OSError:
        pytest.skip('no hard links here')
    coco, ade, _ = pictures(small, 'train', 1)
    assert coco.samefile(ade)


def test_pictures_are_copied_where_links_fail(small, tmp_path, monkeypatch):
    def refuse(*args):
        raise PermissionError('no links')

    monkeypatch.setattr(shapes.os, 'link', refuse)
    root = shapes.generate(tmp_path / 'shapes', workers=1, **SMALL)
    assert contents(root) == contents(small)
    coco, ade, _ = pictures(root, 'train', 1)
    assert not coco.samefile(ade)


def test_semantic_maps(small):
    seen = set()
    for split, number in SPLIT_NUMBERS:
        ade, city = ade_map(small, split, number), city_map(small, split, number)
        assert ade.dtype == city.dtype == np.uint8
        assert ade.shape == city.shape == (64, 64)
        np.testing.assert_array_equal(ade, city + 1)
        np.testing.assert_array_equal(city, sample_of(split, number).semantic)
        seen |= set(np.unique(ade))
    assert seen == {1, 2, 3, 4, 5, 6}


@pytest.mark.parametrize('split', ['train', 'val'])
def test_coco_json(small, split):
    coco = load_coco(small, split)
    assert {'info', 'licenses', 'images', 'annotations', 'categories'} == coco.dataset.keys()
    assert [(c['id'], c['name']) for c in coco.dataset['categories']] == list(
        enumerate(['circle', 'square', 'triangle', 'star', 'cross'], 1)
    )
    assert len(coco.imgs) == COUNTS[split]
    assert len(coco.anns) == len(coco.dataset['annotations']), 'annotation ids repeat'
    for image in coco.imgs.values():
        picture = cv2.imread(str(small / f'coco/{split}2017' / image['file_name']))
        assert picture.shape[:2] == (image['height'], image['width'])
        assert coco.getAnnIds(imgIds=image['id'])


@pytest.mark.parametrize('split', ['train', 'val'])
def test_coco_annotations_match_the_pixels(small, split):
    coco = load_coco(small, split)
    for number in coco.imgs:
        annotations = coco.imgToAnns[number]
        instances = sample_of(split, number).instances
        assert [a['category_id'] for a in annotations] == [i.label for i in instances]
        merged = np.zeros((64, 64), np.uint8)
        for annotation, (label, mask) in zip(annotations, instances):
            raster = coco.annToMask(annotation).astype(bool)
            assert (raster & mask).sum() >= 0.9 * (raster | mask).sum()
            merged[raster] = label
            ys, xs = np.nonzero(mask)
            x, y, width, height = annotation['bbox']
            assert (x, y) == (xs.min(), ys.min())
            assert (x + width, y + height) == (xs.max() + 1, ys.max() + 1)
            assert annotation['area'] == mask.sum()
            assert annotation['iscrowd'] == 0
            assert all(len(polygon) >= 6 for polygon in annotation['segmentation'])
        np.testing.assert_array_equal(merged, city_map(small, split, number))


@pytest.mark.parametrize('holes', [[], [(10, 12, 5, 4)], [(10, 12, 1, 1), (20, 22, 6, 3)]])
def test_polygons_keep_parts_and_holes(holes):
    mask = np.zeros((40, 50), bool)
    mask[5:30, 4:32] = True
    mask[34, 45] = True
    mask[0:4, 40:50] = True
    for x, y, width, height in holes:
        mask[y : y + height, x : x + width] = False
    np.testing.assert_array_equal(rasterise(shapes._polygons(mask), mask.shape), mask)


def test_polygons_surround_the_pixel_centres():
    mask = np.zeros((9, 9), bool)
    mask[4, 6] = True
    (polygon,) = shapes._polygons(mask)
    assert (np.mean(polygon[0::2]), np.mean(polygon[1::2])) == (6.5, 4.5)


@pytest.mark.parametrize('split', ['train', 'val'])
def test_imagenet_crops(small, split):
    coco = load_coco(small, split)
    wanted = Counter(coco.cats[a['category_id']]['name'] for a in coco.anns.values())
    folders = {folder.name: folder for folder in (small / 'imagenet' / split).iterdir()}
    assert folders.keys() == set(shapes.CLASSES), 'a class without a picture has a folder, too'
    for name, folder in folders.items():
        files = sorted(folder.iterdir())
        assert len(files) == wanted[name]
        for file in files:
            assert cv2.imread(str(file)).shape == (64, 64, 3)
            number, which = map(int, file.stem.split('_'))
            assert coco.cats[coco.imgToAnns[number][which - 1]['category_id']]['name'] == name


@pytest.mark.parametrize(
    'bbox, corner, side',
    [
        ([20, 24, 16, 8], (18, 18), 20),  # 25 % wider than the long side, centred
        ([0, 50, 16, 14], (0, 44), 20),
        ([50, 0, 14, 16], (44, 0), 20),  # moved inside
        ([2, 2, 60, 60], (0, 0), 64),
    ],
)  # no larger than the picture
def test_crop_is_a_square_around_the_box(bbox, corner, side):
    y, x = np.mgrid[:64, :64]
    crop = shapes._crop(np.stack([x, y, x], axis=2).astype(np.uint8), bbox)
    assert crop.shape == (64, 64, 3)
    np.testing.assert_array_equal(crop[0, 0], [corner[0], corner[1], corner[0]])
    end = corner[0] + side - 1, corner[1] + side - 1
    np.testing.assert_array_equal(crop[-1, -1], [end[0], end[1], end[0]])


def test_description(small):
    description = json.loads((small / 'shapes.json').read_text())
    assert description['classes'] == list(shapes.CLASSES)
    assert SMALL.items() <= description['parameters'].items()
    assert description['parameters']['version'] == shapes.VERSION
    for split, count in description['counts'].items():
        assert count['images'] == COUNTS[split]
        assert count['instances'] == sum(count['instances_by_class'].values())
        assert count['instances_by_class'] == {
            name: len(list((small / 'imagenet' / split / name).iterdir()))
            for name in shapes.CLASSES
        }


def test_one_color_a_class():
    assert len(shapes.PALETTE) == len(shapes.SEG_CLASSES) == 6
    assert len({tuple(color) for color in shapes.PALETTE}) == 6


# What is already there


def test_an_up_to_date_set_is_left_alone(own, capsys, monkeypatch):
    def times():
        return {path: path.stat().st_mtime_ns for path in (own, *own.rglob('*'))}

    monkeypatch.setattr(shapes, 'draw_image', None)
    before = times()
    assert shapes.generate(own, **SMALL) == own
    assert 'up to date' in capsys.readouterr().out
    assert times() == before


@pytest.mark.parametrize('name, value', [('seed', 9), ('num_val', 5), ('image_size', 32)])
def test_other_parameters_are_refused(own, name, value):
    before = contents(own)
    with pytest.raises(FileExistsError) as error:
        shapes.generate(own, workers=1, **{**SMALL, name: value})
    message = str(error.value)
    assert str(own) in message and '--force' in message
    assert f'{name} is {SMALL[name]} instead of {value}' in message
    assert [other for other in SMALL if other != name and f'{other} is' in message] == []
    assert contents(own) == before


def test_a_set_of_another_version_is_refused(own, monkeypatch):
    monkeypatch.setattr(shapes, 'VERSION', shapes.VERSION + 1)
    with pytest.raises(FileExistsError, match='version is 2 instead of 3'):
        shapes.generate(own, workers=1, **SMALL)


def test_force_replaces_a_set(own, tmp_path):
    other = {**SMALL, 'seed': 9, 'num_train': 3}
    shapes.generate(own, workers=1, force=True, **other)
    assert list(tmp_path.iterdir()) == [own]
    assert contents(own) == contents(shapes.generate(tmp_path / 'new', workers=1, **other))


def test_force_repairs_a_damaged_set(own, small):
    pictures(own, 'train', 1)[0].unlink()
    shapes.generate(own, workers=1, force=True, **SMALL)
    assert contents(own) == contents(small)


def test_an_empty_directory_needs_force(small, tmp_path):
    root = tmp_path / 'shapes'
    root.mkdir()
    with pytest.raises(FileExistsError, match='not a Shapes set'):
        shapes.generate(root, workers=1, **SMALL)
    shapes.generate(root, workers=1, force=True, **SMALL)
    assert contents(root) == contents(small)


@pytest.mark.parametrize('force', [False, True])
@pytest.mark.parametrize(
    'file, text',
    [
        ('thesis.txt', 'mine'),
        ('shapes.json', '{broken'),
        ('shapes.json', '[]'),
        ('shapes.json', '{"format": "geometry", "parameters": {}}'),
        ('shapes.json', '{"format": "mmlinattn-shapes"}'),
    ],
)
def test_a_foreign_directory_is_never_touched(tmp_path, file, text, force):
    root = tmp_path / 'shapes'
    root.mkdir()
    (root / file).write_text(text)
    with pytest.raises(FileExistsError, match=str(root)):
        shapes.generate(root, workers=1, force=force, **SMALL)
    assert contents(tmp_path) == {f'shapes/{file}': text.encode()}


def test_force_spares_a_set_with_foreign_files(own):
    (own / 'thesis.txt').write_text('mine')
    before = contents(own)
    with pytest.raises(FileExistsError, match=r'thesis\.txt'):
        shapes.generate(own, workers=1, force=True, **{**SMALL, 'seed': 9})
    assert contents(own) == before


@pytest.mark.parametrize('force', [False, True])
def test_a_file_in_the_way(tmp_path, force):
    root = tmp_path / 'shapes'
    root.write_text('mine')
    with pytest.raises(FileExistsError, match=str(root)):
        shapes.generate(root, workers=1, force=force, **SMALL)
    assert root.read_text() == 'mine'


def test_a_link_to_an_absent_directory(small, tmp_path):
    link = tmp_path / 'link'
    link.symlink_to(tmp_path / 'disk' / 'shapes')
    assert shapes.generate(link, workers=1, **SMALL) == link
    assert link.is_symlink()
    assert contents(link) == contents(small)


# Failures


class Failure:
    """A `draw_image` that raises at the third picture."""

    def __init__(self, error):
        self.error, self.calls, self.draw = error, 0, shapes.draw_image

    def __call__(self, rng, image_size):
        self.calls += 1
        if self.calls == 3:
            raise self.error
        return self.draw(rng, image_size)


@pytest.mark.parametrize('error', [RuntimeError('pen broken'), KeyboardInterrupt()])
def test_a_failure_leaves_nothing(tmp_path, monkeypatch, error):
    monkeypatch.setattr(shapes, 'draw_image', Failure(error))
    with pytest.raises(type(error)):
        shapes.generate(tmp_path / 'shapes', workers=1, **SMALL)
    assert list(tmp_path.iterdir()) == []
    assert shapes.draw_image.calls == 3


def fail(*args):
    raise RuntimeError(f'process {os.getpid()}')


@pytest.mark.skipif(
    sys.platform != 'linux' or sys.version_info >= (3, 14),
    reason='workers see the patch only when forked',
)
def test_a_failing_worker_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(shapes, 'draw_image', fail)
    with pytest.raises(RuntimeError, match='process') as error:
        shapes.generate(tmp_path / 'shapes', workers=2, **SMALL)
    assert str(error.value) != f'process {os.getpid()}'
    assert list(tmp_path.iterdir()) == []


def test_a_failure_with_force_keeps_the_old_set(own, small, monkeypatch):
    monkeypatch.setattr(shapes, 'draw_image', Failure(RuntimeError('pen broken')))
    with pytest.raises(RuntimeError):
        shapes.generate(own, workers=1, force=True, **{**SMALL, 'seed': 9})
    assert list(own.parent.iterdir()) == [own]
    assert contents(own) == contents(small)


def test_a_failure_to_move_brings_the_old_set_back(own, small, monkeypatch):
    replace = os.replace

    def refuse(source, target):
        if '.partial-' in Path(source).name:
            raise OSError('disk gone')
        replace(source, target)

    monkeypatch.setattr(shapes.os, 'replace', refuse)
    with pytest.raises(OSError, match='disk gone'):
        shapes.generate(own, workers=1, force=True, **{**SMALL, 'seed': 9})
    assert list(own.parent.iterdir()) == [own]
    assert contents(own) == contents(small)


def test_the_set_appears_only_when_complete(tmp_path, monkeypatch):
    root = tmp_path / 'shapes'
    seen = []
    save = shapes._save

    def watch(path, data):
        seen.append((path.name, root.exists()))
        save(path, data)

    monkeypatch.setattr(shapes, '_save', watch)
    shapes.generate(root, workers=1, **SMALL)
    assert seen[-1][0] == 'shapes.json'
    assert not any(there for _, there in seen)


@pytest.mark.parametrize('moment', ['_write_set', '_install'])
def test_files_that_come_in_between_are_kept(tmp_path, monkeypatch, moment):
    root = tmp_path / 'shapes'
    step = getattr(shapes, moment)

    def intrude(*args):
        root.mkdir()
        (root / 'thesis.txt').write_text('mine')
        step(*args)

    monkeypatch.setattr(shapes, moment, intrude)
    with pytest.raises(OSError, match=str(root)):
        shapes.generate(root, workers=1, **SMALL)
    assert contents(tmp_path) == {'shapes/thesis.txt': b'mine'}


def test_the_same_set_that_comes_in_between_is_used(small, tmp_path, monkeypatch):
    root = tmp_path / 'shapes'
    monkeypatch.setattr(shapes, '_write_set', lambda *_: shutil.copytree(small, root))
    assert shapes.generate(root, workers=1, **SMALL) == root
    assert contents(root) == contents(small)
    assert list(tmp_path.iterdir()) == [root]


@pytest.mark.parametrize(
    'name, value',
    [
        ('num_train', 0),
        ('num_val', -1),
        ('image_size', 31),
        ('image_size', 64.0),
        ('workers', 0),
        ('seed', -1),
        ('num_train', '6'),
    ],
)
def test_bad_arguments(tmp_path, name, value):
    with pytest.raises(ValueError, match=f'^{name} must .* got {value!r}$'):
        shapes.generate(tmp_path / 'shapes', **{name: value})
    assert list(tmp_path.iterdir()) == []


def test_draw_image_checks_its_size():
    with pytest.raises(ValueError, match=r'image_size must .* got 16'):
        shapes.draw_image(np.random.default_rng(0), 16)


# Command line


def options(**changes):
    return [f'--{name.replace("_", "-")}={value}' for name, value in {**SMALL, **changes}.items()]


def test_main_writes_and_reports(small, tmp_path, capsys):
    root = tmp_path / 'shapes'
    assert shapes.main([str(root), *options(workers=1)]) == 0
    assert contents(root) == contents(small)
    out = capsys.readouterr().out
    assert str(root) in out and 'train: 6 images' in out and 'val: 4 images' in out


@pytest.mark.parametrize('changes', [{'seed': 9}, {'image_size': 8}])
def test_main_reports_errors_in_one_line(own, capsys, changes):
    assert shapes.main([str(own), *options(**changes)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ''
    assert captured.err.startswith('error: ') and captured.err.count('\n') == 1


def test_main_force(own):
    assert shapes.main([str(own), *options(seed=9, workers=1), '--force']) == 0
    assert json.loads((own / 'shapes.json').read_text())['parameters']['seed'] == 9


def test_defaults_of_command_line_and_function_agree(monkeypatch, own):
    calls = []
    monkeypatch.setattr(shapes, 'generate', lambda **kwargs: calls.append(kwargs) or own)
    shapes.main([])
    assert calls == [
        {
            'root': 'data/shapes',
            'num_train': 600,
            'num_val': 150,
            'image_size': 128,
            'seed': 0,
            'workers': os.cpu_count(),
            'force': False,
        }
    ]


@pytest.mark.filterwarnings('ignore::RuntimeWarning')  # runpy: the module is already imported
@pytest.mark.parametrize(
    'arguments, code', [(['--help'], 0), (['--seed', 'x'], 2), (['--image-size', '8'], 2)]
)
def test_module_exit_code(monkeypatch, capsys, arguments, code):
    monkeypatch.setattr(sys, 'argv', ['shapes', *arguments])
    monkeypatch.setattr(signal, 'signal', lambda *_: None)
    with pytest.raises(SystemExit) as exit_:
        runpy.run_module('mmlinattn.datasets.shapes', run_name='__main__')
    assert exit_.value.code == code
    captured = capsys.readouterr()
    assert ('--force' in captured.out) == (code == 0)
    assert ('error: ' in captured.err) == (code == 2)


@pytest.mark.skipif(os.name != 'posix', reason='needs POSIX signals')
@pytest.mark.parametrize('number, code', [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_process_leaves_nothing(tmp_path, number, code):
    process = subprocess.Popen(
        [
            sys.executable,
            shapes.__file__,
            str(tmp_path / 'shapes'),
            '--num-train=5000',
            '--workers=2',
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Shells start background jobs with SIGINT ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob('.shapes.partial-*/coco/train2017/*.jpg')):
            assert process.poll() is None and time.monotonic() < deadline, process.communicate()
            time.sleep(0.02)
        os.killpg(process.pid, number)  # to the workers, too, as a terminal does
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == code
    assert 'Traceback' not in err
    assert list(tmp_path.iterdir()) == []


def test_needs_no_torch_and_no_openmmlab():
    code = (
        'import runpy, sys; runpy.run_path(sys.argv[1]); print(*sorted({"torch", "mmcv", '
        '"mmengine", "mmdet", "mmseg", "mmpretrain", "mmlinattn"} & sys.modules.keys()))'
    )
    done = subprocess.run(
        [sys.executable, '-c', code, shapes.__file__], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ''


def test_docstring_examples():
    result = doctest.testmod(shapes)
    assert result.attempted >= 5 and result.failed == 0
