"""Shapes: a small drawn data set in the layouts of COCO, ADE20K, Cityscapes and ImageNet.

Textured circles, squares, triangles, stars and crosses on textured backgrounds, written once by
seed as real files, so that what runs on Shapes runs on the real set with another ``data_root``::

    python -m mmlinattn.datasets.shapes data/shapes

Below the root lie::

    coco/{train,val}2017/*.jpg, coco/annotations/instances_{train,val}2017.json
    ade/images/{training,validation}/*.jpg      ade/annotations/{training,validation}/*.png
    cityscapes/leftImg8bit/{train,val}/shapes/*_leftImg8bit.png
    cityscapes/gtFine/{train,val}/shapes/*_gtFine_labelTrainIds.png
    imagenet/{train,val}/<class>/*.jpg          shapes.json

COCO category ids are 1..5 in the order of `CLASSES`. ADE maps hold 1 for background and 2..6 for
the shapes (0, unlabelled, is unused), Cityscapes maps hold 0 and 1..5. Readers of the ImageNet
layout sort its class folders by name, which is not the order of `CLASSES`.
"""

from __future__ import annotations

import argparse
import json
import numbers
import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
from rich.console import Console
from rich.progress import track

CLASSES = ('circle', 'square', 'triangle', 'star', 'cross')
SEG_CLASSES = ('background',) + CLASSES
PALETTE = [
    [70, 70, 70],
    [220, 20, 60],
    [0, 130, 180],
    [250, 170, 30],
    [107, 142, 35],
    [153, 50, 204],
]

FORMAT = 'mmlinattn-shapes'
VERSION = 2  # raise it when the same parameters no longer give the same files
SPLITS = ('train', 'val')
LAYOUTS = ('coco', 'ade', 'cityscapes', 'imagenet')
MIN_IMAGE_SIZE = 32
MIN_SHAPES, MAX_SHAPES = 1, 4
MIN_DIAMETER, MAX_DIAMETER = 24 / 128, 60 / 128  # as parts of the image side
MIN_VISIBLE = 0.6  # of every shape beneath another one
MIN_CONTRAST = 110.0  # Euclidean distance in RGB
SUPERSAMPLING = 4
# As with real things, colour and texture hint at the class, and the outline settles it: most
# shapes have the texture and the hue (in turns of the colour circle) of their class.
TEXTURES = ('dots', 'checks', 'stripes', 'solid', 'gradient')
HUES, HUE_SPREAD = (0.0, 0.2, 0.4, 0.6, 0.8), 0.07
TYPICAL = 0.85  # part of the shapes that look like their class
JPEG_QUALITY, CROP_SIZE, CROP_SCALE = 90, 64, 1.25


class Instance(NamedTuple):
    """A shape: label 1..5, an index into `SEG_CLASSES`, and (H, W) bool mask of what is visible."""

    label: int
    mask: np.ndarray


@dataclass(frozen=True)
class Sample:
    """A picture, (H, W, 3) uint8 RGB, and its labels.

    `semantic` is a (H, W) uint8 map of indices into `SEG_CLASSES`; `instances` are the shapes
    from bottom to top, whose masks do not overlap.
    """

    image: np.ndarray
    semantic: np.ndarray
    instances: list[Instance]


def _polygon(*radii: float) -> np.ndarray:
    angles = np.arange(len(radii)) * 2 * np.pi / len(radii)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1) * np.array(radii)[:, None]


_CROSS = np.array(
    [
        (3, 1),
        (1, 1),
        (1, 3),
        (-1, 3),
        (-1, 1),
        (-3, 1),
        (-3, -1),
        (-1, -1),
        (-1, -3),
        (1, -3),
        (1, -1),
        (3, -1),
    ]
) / np.sqrt(10)
_OUTLINES = (
    _polygon(*[1] * 48),
    _polygon(1, 1, 1, 1),
    _polygon(1, 1, 1),
    _polygon(*[1, 0.42] * 5),
    _CROSS,
)  # one a class, in the unit circle


def _axes(rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Two (S, S) coordinates in pixels, at right angles, turned and shifted at random."""
    angle, shift = rng.uniform(0, 2 * np.pi), rng.uniform(0, size, 2)
    y, x = np.mgrid[:size, :size].astype(np.float32)
    return (
        np.cos(angle) * x + np.sin(angle) * y + shift[0],
        np.cos(angle) * y - np.sin(angle) * x + shift[1],
    )


def _background(rng: np.random.Generator, size: int) -> np.ndarray:
    """Gradient, smooth noise, sometimes soft stripes, and grain: (S, S, 3) float32."""
    u, v = _axes(rng, size)
    ramp = (u - u.min()) / (u.max() - u.min())
    canvas = rng.uniform(50, 205, 3) + ramp[..., None] * rng.uniform(-60, 60, 3)
    cells = int(rng.integers(3, 9))
    clouds = rng.normal(0, 14, (cells, cells, 3)).astype(np.float32)
    canvas += cv2.resize(clouds, (size, size), interpolation=cv2.INTER_CUBIC)
    if rng.random() < 0.4:
        waves = np.sin(v * 2 * np.pi / (size * rng.uniform(0.08, 0.3)))
        canvas += waves[..., None] * rng.uniform(-12, 12, 3)
    canvas += rng.normal(0, 3, canvas.shape)
    return np.clip(canvas, 0, 255).astype(np.float32)


def _texture(
    rng: np.random.Generator, size: int, diameter: float, style: int, beneath: np.ndarray
) -> np.ndarray:
    """A texture in the style of a class that stands out from the pixels beneath, (N, 3).

    Returns (S, S, 3) float32, scaled to a shape of this diameter.
    """
    u, v = _axes(rng, size)
    period = max(4.0, diameter * rng.uniform(0.2, 0.4))
    kind, colors = TEXTURES[style], _contrasting_colors(rng, beneath, HUES[style])
    if kind == 'solid':
        blend = np.zeros_like(u)
    elif kind == 'stripes':
        blend = u % period < period / 2
    elif kind == 'checks':
        blend = (u % period < period / 2) ^ (v % period < period / 2)
    elif kind == 'dots':
        blend = np.hypot(u % period - period / 2, v % period - period / 2) < 0.32 * period
    else:
        blend = 0.5 + 0.5 * np.sin(u * np.pi / diameter)
    texture = colors[0] + blend[..., None] * (colors[1] - colors[0])
    return (texture + rng.normal(0, rng.uniform(2, 8), texture.shape)).astype(np.float32)


def _colors_of_hue(rng: np.random.Generator, hue: float, count: int) -> np.ndarray:
    """Bright and dark, vivid and pale colours around a hue: (count, 3) float32 RGB."""
    turns = (hue + rng.uniform(-HUE_SPREAD, HUE_SPREAD, count)) % 1.0
    saturation, value = rng.uniform(0.5, 1, count), rng.uniform(0.35, 1, count)
    hsv = np.stack([360 * turns, saturation, value], axis=-1).astype(np.float32)
    return 255 * cv2.cvtColor(hsv[None], cv2.COLOR_HSV2RGB)[0]


def _contrasting_colors(rng: np.random.Generator, beneath: np.ndarray, hue: float) -> np.ndarray:
    """Two colours of a hue, (2, 3), that stand out from nearly all of the pixels beneath."""
    beneath = beneath[:: max(1, len(beneath) // 128)]

    def contrast(colors):
        distances = np.linalg.norm(colors[:, None] - beneath[None], axis=2)
        # Capped, so that the first sufficient colour wins and not the most extreme one.
        return np.minimum(np.quantile(distances, 0.1, axis=1), MIN_CONTRAST)

    candidates = _colors_of_hue(rng, hue, 32)
    best = int(contrast(candidates).argmax())
    first, others = candidates[best], np.delete(candidates, best, axis=0)
    # A gradient shows what is in between, too.
    second = others[(contrast(others) + contrast((others + first) / 2)).argmax()]
    return np.stack([first, second])


def _coverage(rng: np.random.Generator, size: int, label: int, diameter: float) -> np.ndarray:
    """Part of each pixel covered by a shape turned and placed at random: (S, S) float32."""
    radius = diameter / 2
    angle = rng.uniform(0, 2 * np.pi)
    # Near the border a shape may lose a little, never its recognisable form.
    center = rng.uniform(0.8 * radius, size - 0.8 * radius, 2)
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    points = (_OUTLINES[label - 1] @ turn * radius + center) * SUPERSAMPLING
    fine = np.zeros((size * SUPERSAMPLING,) * 2, np.uint8)
    cv2.fillPoly(fine, [np.rint(points).astype(np.int32)], 255)
    return cv2.resize(fine, (size, size), interpolation=cv2.INTER_AREA) / np.float32(255)


def draw_image(rng: np.random.Generator, image_size: int) -> Sample:
    """Draw a picture of one to four shapes, of a square image_size (at least 32) pixels wide.

    All randomness comes from rng: the same state gives the same picture. Raises ValueError if
    image_size is not an integer of at least 32. `Sample` has the shapes and dtypes.

    Example:
        >>> sample = draw_image(np.random.default_rng(0), 64)
        >>> sample.image.shape, sample.semantic.dtype
        ((64, 64, 3), dtype('uint8'))
        >>> 1 <= len(sample.instances) <= 4
        True
    """
    size = _check_integer('image_size', image_size, MIN_IMAGE_SIZE)
    canvas = _background(rng, size)
    top = np.zeros((size, size), np.uint8)  # number of the topmost shape, 0 where there is none
    labels, areas = [0], [0]
    wanted = int(rng.integers(MIN_SHAPES, MAX_SHAPES + 1))
    for _ in range(10 * wanted):
        label = int(rng.integers(1, len(SEG_CLASSES)))
        diameter = size * rng.uniform(MIN_DIAMETER, MAX_DIAMETER)
        coverage = _coverage(rng, size, label, diameter)
        mask = coverage >= 0.5
        visible = np.bincount(top[~mask], minlength=len(labels))
        if np.any(visible[1:] < MIN_VISIBLE * np.array(areas[1:])):
            continue
        style = label - 1 if rng.random() < TYPICAL else int(rng.integers(len(CLASSES)))
        around = cv2.dilate(mask.astype(np.uint8), np.ones((5, 5), np.uint8)) > 0
        texture = _texture(rng, size, diameter, style, canvas[around])
        canvas += coverage[..., None] * (texture - canvas)
        top[mask] = len(labels)
        labels.append(label)
        areas.append(int(mask.sum()))
        if len(labels) > wanted:
            break
    return Sample(
        image=np.clip(np.rint(canvas), 0, 255).astype(np.uint8),
        semantic=np.array(labels, np.uint8)[top],
        instances=[Instance(labels[i], top == i) for i in range(1, len(labels))],
    )


def _polygons(mask: np.ndarray) -> list[list[float]]:
    """COCO polygons of a (H, W) bool mask, exact when rasterised by pycocotools."""
    # At twice the size contours run between the pixel centres instead of through them, and even
    # a single pixel has one of four points.
    double = mask.astype(np.uint8).repeat(2, axis=0).repeat(2, axis=1)
    contours, hierarchy = cv2.findContours(double, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_SIMPLE)
    for contour, (*_, parent) in zip(contours, hierarchy[0]):
        if parent >= 0:
            # COCO polygons have no holes: cut the mask in two through this one.
            x, _, width, _ = cv2.boundingRect(contour)
            left, right = mask.copy(), mask.copy()
            cut = (x + width // 2) // 2
            left[:, cut:] = False
            right[:, :cut] = False
            return _polygons(left) + _polygons(right)
    return [((contour.reshape(-1) + 0.5) / 2).tolist() for contour in contours]


def _annotation(instance: Instance, image_id: int) -> dict[str, Any]:
    ys, xs = np.nonzero(instance.mask)
    left, top = int(xs.min()), int(ys.min())
    bbox = [left, top, int(xs.max()) - left + 1, int(ys.max()) - top + 1]
    return {
        'image_id': image_id,
        'category_id': instance.label,
        'bbox': bbox,
        'area': len(xs),
        'iscrowd': 0,
        'segmentation': _polygons(instance.mask),
    }


def _crop(image: np.ndarray, bbox: list[int]) -> np.ndarray:
    """Square around a box, moved inside the picture where it would stick out."""
    x, y, width, height = bbox
    side = min(round(CROP_SCALE * max(width, height)), len(image))
    left = min(max(x + (width - side) // 2, 0), len(image) - side)
    top = min(max(y + (height - side) // 2, 0), len(image) - side)
    return cv2.resize(
        image[top : top + side, left : left + side],
        (CROP_SIZE, CROP_SIZE),
        interpolation=cv2.INTER_AREA if side > CROP_SIZE else cv2.INTER_LINEAR,
    )


def _encode(suffix: str, image: np.ndarray) -> bytes:
    if image.ndim == 3:
        image = cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
    options = [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY] if suffix == '.jpg' else []
    return cv2.imencode(suffix, image, options)[1].tobytes()


def _save(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:  # no hard links on this file system
        shutil.copyfile(source, target)


def _write_image(root: Path, image_size: int, seed: int, job: tuple[str, int]) -> dict[str, Any]:
    """Draw one picture of a split, write all its files and return its COCO records."""
    split, index = job
    sample = draw_image(np.random.default_rng([seed, SPLITS.index(split), index]), image_size)
    number = index + 1
    ade = {'train': 'training', 'val': 'validation'}[split]
    city = f'{split}/shapes/shapes_{number:06d}_000000'

    picture = root / f'coco/{split}2017/{number:012d}.jpg'
    _save(picture, _encode('.jpg', sample.image))
    _link(picture, root / f'ade/images/{ade}/ADE_{split}_{number:08d}.jpg')
    # The same pixels as the JPEG file: Cityscapes has PNG.
    _save(
        root / f'cityscapes/leftImg8bit/{city}_leftImg8bit.png',
        _encode('.png', cv2.imread(str(picture))[..., ::-1]),
    )
    _save(
        root / f'ade/annotations/{ade}/ADE_{split}_{number:08d}.png',
        _encode('.png', sample.semantic + 1),
    )
    _save(
        root / f'cityscapes/gtFine/{city}_gtFine_labelTrainIds.png',
        _encode('.png', sample.semantic),
    )

    annotations = [_annotation(instance, number) for instance in sample.instances]
    for i, annotation in enumerate(annotations, 1):
        name = SEG_CLASSES[annotation['category_id']]
        _save(
            root / f'imagenet/{split}/{name}/{number:06d}_{i}.jpg',
            _encode('.jpg', _crop(sample.image, annotation['bbox'])),
        )
    image = {'id': number, 'file_name': picture.name, 'width': image_size, 'height': image_size}
    return {'image': image, 'annotations': annotations}


def _init_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent cleans up
    cv2.setNumThreads(0)


def _write_images(root: Path, parameters: dict[str, Any], workers: int) -> list[dict[str, Any]]:
    jobs = [(split, i) for split in SPLITS for i in range(parameters[f'num_{split}'])]
    write = partial(_write_image, root, parameters['image_size'], parameters['seed'])
    progress = partial(
        track, description='Drawing Shapes', total=len(jobs), console=Console(stderr=True)
    )
    workers = min(workers, len(jobs))
    if workers == 1:
        return list(progress(map(write, jobs)))
    threads = cv2.getNumThreads()
    cv2.setNumThreads(0)  # a forked worker can hang on the thread pool of its parent
    try:
        with ProcessPoolExecutor(workers, initializer=_init_worker) as pool:
            try:
                return list(progress(pool.map(write, jobs, chunksize=8)))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
    finally:
        cv2.setNumThreads(threads)


def _coco_json(records: list[dict[str, Any]]) -> dict[str, Any]:
    annotations = [annotation for record in records for annotation in record['annotations']]
    return {
        'info': {'description': 'Shapes, drawn by mmlinattn', 'version': str(VERSION)},
        'licenses': [],
        'images': [record['image'] for record in records],
        'annotations': [{'id': i, **a} for i, a in enumerate(annotations, 1)],
        'categories': [
            {'id': i, 'name': name, 'supercategory': 'shape'} for i, name in enumerate(CLASSES, 1)
        ],
    }


def _write_set(root: Path, parameters: dict[str, Any], workers: int) -> None:
    for split in SPLITS:
        for name in CLASSES:  # without a picture, too: readers number the folders
            (root / f'imagenet/{split}/{name}').mkdir(parents=True)
    records = _write_images(root, parameters, workers)
    middle = parameters['num_train']
    counts = {}
    for split, part in zip(SPLITS, (records[:middle], records[middle:])):
        coco = _coco_json(part)
        _save(root / f'coco/annotations/instances_{split}2017.json', json.dumps(coco).encode())
        labels = Counter(CLASSES[a['category_id'] - 1] for a in coco['annotations'])
        counts[split] = {
            'images': len(part),
            'instances': sum(labels.values()),
            'instances_by_class': {name: labels[name] for name in CLASSES},
        }
    description = {
        'format': FORMAT,
        'parameters': parameters,
        'classes': CLASSES,
        'palette': PALETTE,
        'counts': counts,
    }
    _save(root / 'shapes.json', json.dumps(description, indent=2).encode())


def _read_parameters(root: Path) -> dict[str, Any] | None:
    """Parameters of the Shapes set at root, None if it is none."""
    try:
        description = json.loads((root / 'shapes.json').read_bytes())
        parameters = description['parameters'] if description['format'] == FORMAT else None
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return parameters if isinstance(parameters, dict) else None


def _check_root(root: Path, parameters: dict[str, Any], force: bool) -> bool:
    """Whether the set is already at root; raises FileExistsError if something else is."""
    if not root.exists():
        return False
    found = _read_parameters(root)
    if force:
        own = () if found is None else (*LAYOUTS, 'shapes.json')
        names = [path.name for path in root.iterdir()] if root.is_dir() else [root.name]
        others = sorted(set(names) - set(own))
        if others:
            raise FileExistsError(
                f'{root} is not replaced, even with --force: it holds what is '
                f'not part of a Shapes set ({", ".join(others[:5])})'
            )
        return False
    if found is None:
        raise FileExistsError(
            f'{root} exists and is not a Shapes set. Choose another root '
            '(--force replaces only a Shapes set or an empty directory)'
        )
    differing = [
        f'{name} is {found.get(name)!r} instead of {parameters.get(name)!r}'
        for name in sorted(found.keys() | parameters.keys())
        if found.get(name) != parameters.get(name)
    ]
    if differing:
        raise FileExistsError(
            f'{root} is a Shapes set with other parameters: '
            f'{", ".join(differing)}. Choose another root or use --force'
        )
    return True


def _install(staging: Path, root: Path, force: bool) -> None:
    """Move the finished set to root; with force, what is there goes, but not before."""
    old = root.with_name(f'.{root.name}.old-{os.getpid()}')
    try:
        if force and root.exists():
            os.replace(root, old)
        os.replace(staging, root)
    except BaseException:
        if old.exists() and not root.exists():
            os.replace(old, root)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _check_integer(name: str, value: Any, low: int) -> int:
    if not isinstance(value, numbers.Integral) or value < low:
        raise ValueError(f'{name} must be an integer >= {low}, got {value!r}')
    return int(value)


def generate(
    root: str | os.PathLike = 'data/shapes',
    num_train: int = 600,
    num_val: int = 150,
    image_size: int = 128,
    seed: int = 0,
    workers: int | None = None,
    force: bool = False,
) -> Path:
    """Write the data set below root, or do nothing if it is already there.

    The files depend on the parameters, not on the number of workers. They are written to a
    hidden directory beside root, which becomes root only when complete. Wherever a message says
    --force, it means the argument force.

    Args:
        root: directory to create; returned as a path.
        num_train: number of training images, at least 1.
        num_val: number of validation images, at least 1.
        image_size: side of the square images in pixels, at least 32.
        seed: seed of all randomness, at least 0.
        workers: number of processes, at least 1; None means one a CPU, 1 means this one.
        force: write anew if root is a Shapes set, of whatever parameters, or empty.

    Raises:
        ValueError: if an argument is out of range; it names the argument and its value.
        FileExistsError: if root is a Shapes set of other parameters and force is not set, or if
            root is anything else (an empty directory is fine with force).

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     root = generate(folder + '/shapes', num_train=2, num_val=1, workers=1)
        ...     sorted(path.name for path in root.iterdir())
        ['ade', 'cityscapes', 'coco', 'imagenet', 'shapes.json']
    """
    workers = _check_integer('workers', os.cpu_count() or 1 if workers is None else workers, 1)
    parameters = {
        'version': VERSION,
        'num_train': _check_integer('num_train', num_train, 1),
        'num_val': _check_integer('num_val', num_val, 1),
        'image_size': _check_integer('image_size', image_size, MIN_IMAGE_SIZE),
        'seed': _check_integer('seed', seed, 0),
        'shapes_per_image': [MIN_SHAPES, MAX_SHAPES],
        'relative_diameter': [MIN_DIAMETER, MAX_DIAMETER],
        'min_visible': MIN_VISIBLE,
        'min_contrast': MIN_CONTRAST,
        'jpeg_quality': JPEG_QUALITY,
        'crop_size': CROP_SIZE,
        'crop_scale': CROP_SCALE,
    }
    target = Path(root).resolve()
    if _check_root(target, parameters, force):
        print(f'Shapes in {root} is up to date')
        return Path(root)
    staging = target.with_name(f'.{target.name}.partial-{os.getpid()}')
    staging.mkdir(parents=True)
    try:
        _write_set(staging, parameters, workers)
        # Another process may have been faster, or have put files there meanwhile.
        if not _check_root(target, parameters, force):
            _install(staging, target, force)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return Path(root)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog='python -m mmlinattn.datasets.shapes',
        description='Write the Shapes data set in the layouts of COCO, ADE20K, Cityscapes and '
        'ImageNet. The same options give the same files.',
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add('root', nargs='?', default='data/shapes', help='directory to create')
    add('--num-train', type=int, default=600, metavar='N', help='number of training images')
    add('--num-val', type=int, default=150, metavar='N', help='number of validation images')
    add(
        '--image-size',
        type=int,
        default=128,
        metavar='PIXELS',
        help=f'side of the square images, at least {MIN_IMAGE_SIZE}',
    )
    add('--seed', type=int, default=0, metavar='N', help='seed of all randomness')
    add('--workers', type=int, default=os.cpu_count(), metavar='N', help='number of processes')
    add(
        '--force',
        action='store_true',
        help='write anew if root is a Shapes set or an empty '
        'directory; anything else is never touched',
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line on argv (default: sys.argv[1:]) and return the exit code.

    0 means done, 2 a bad argument, a root in the way or a failure to write, 130 an interrupt.

    Example:
        >>> main(['--image-size', '8'])  # writes one line to stderr
        2
    """
    options = _parser().parse_args(argv)
    try:
        root = generate(**vars(options))
        counts = json.loads((root / 'shapes.json').read_text())['counts']
    except (OSError, ValueError) as error:
        print(f'error: {error}', file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print('interrupted, nothing written', file=sys.stderr)
        return 130
    print(f'Shapes is in {root}')
    for split, count in counts.items():
        classes = ', '.join(f'{n} {name}' for name, n in count['instances_by_class'].items())
        print(f'  {split}: {count["images"]} images, {count["instances"]} shapes ({classes})')
    return 0


if __name__ == '__main__':
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # clean up then, too
    sys.exit(main())
