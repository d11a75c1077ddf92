"""Files of a Shapes data set in the layouts of COCO, ADE20K, Cityscapes and ImageNet."""

import json
from collections import Counter
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

import cv2
import numpy as np
from rich.console import Console
from rich.progress import track

from .draw import CLASSES, PALETTE, SEG_CLASSES, Instance, draw_image

FORMAT = 'mmlinattn-shapes'
VERSION = 2  # increase it when the same parameters no longer give the same files
SPLITS = ('train', 'val')
ADE_SPLITS = dict(train='training', val='validation')
JPEG_QUALITY, CROP_SIZE, CROP_SCALE = 90, 64, 1.25


def write_set(root: Path, parameters: Dict[str, Any]) -> None:
    """Write a complete set to a directory, with the validated parameters of ``generate``."""
    for split in SPLITS:
        for name in CLASSES:  # empty classes need a folder: readers number the folders
            (root / f'imagenet/{split}/{name}').mkdir(parents=True)
    jobs = [(split, i) for split in SPLITS for i in range(parameters[f'num_{split}'])]
    progress = track(jobs, 'Drawing Shapes', console=Console(stderr=True, markup=False))
    # In this process: one that is being started when a Ctrl-C comes is left behind.
    records = [
        _write_image(root, parameters['image_size'], parameters['seed'], job) for job in progress
    ]
    counts = {}
    for split in SPLITS:
        coco = _coco_json([record for job, record in zip(jobs, records) if job[0] == split])
        save(root / f'coco/annotations/instances_{split}2017.json', json.dumps(coco).encode())
        labels = Counter(CLASSES[a['category_id'] - 1] for a in coco['annotations'])
        counts[split] = dict(
            images=len(coco['images']),
            instances=sum(labels.values()),
            instances_by_class={name: labels[name] for name in CLASSES},
        )
    description = dict(
        format=FORMAT, parameters=parameters, classes=CLASSES, palette=PALETTE, counts=counts
    )
    save(root / 'shapes.json', json.dumps(description, indent=2).encode())


def save(path: Path, data: bytes) -> None:
    """Write a file and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _write_image(root: Path, image_size: int, seed: int, job: Tuple[str, int]) -> Dict[str, Any]:
    split, index = job
    sample = draw_image(np.random.default_rng([seed, SPLITS.index(split), index]), image_size)
    number = index + 1
    ade, ade_name = ADE_SPLITS[split], f'ADE_{split}_{number:08d}'
    city = f'{split}/shapes/shapes_{number:06d}_000000'

    picture, jpeg = root / f'coco/{split}2017/{number:012d}.jpg', _encode('.jpg', sample.image)
    save(picture, jpeg)
    save(root / f'ade/images/{ade}/{ade_name}.jpg', jpeg)
    # Cityscapes has PNG files, so encode the pixels of the JPEG file.
    pixels = cv2.imread(str(picture))
    assert pixels is not None  # just written
    same = _encode('.png', pixels[..., ::-1])
    save(root / f'cityscapes/leftImg8bit/{city}_leftImg8bit.png', same)
    save(root / f'ade/annotations/{ade}/{ade_name}.png', _encode('.png', sample.semantic + 1))
    labels = root / f'cityscapes/gtFine/{city}_gtFine_labelTrainIds.png'
    save(labels, _encode('.png', sample.semantic))

    annotations = [_annotation(instance, number) for instance in sample.instances]
    for i, annotation in enumerate(annotations, 1):
        name = SEG_CLASSES[annotation['category_id']]
        crop = square_crop(sample.image, annotation['bbox'])
        save(root / f'imagenet/{split}/{name}/{number:06d}_{i}.jpg', _encode('.jpg', crop))
    image = dict(id=number, file_name=picture.name, width=image_size, height=image_size)
    return dict(image=image, annotations=annotations)


def _encode(suffix: str, image: np.ndarray) -> bytes:
    """Encode (H, W, 3) RGB or (H, W) uint8 in the format of the suffix."""
    if image.ndim == 3:
        image = cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
    options = [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY] if suffix == '.jpg' else []
    return cv2.imencode(suffix, image, options)[1].tobytes()


def _annotation(instance: Instance, image_id: int) -> Dict[str, Any]:
    ys, xs = np.nonzero(instance.mask)
    left, top = int(xs.min()), int(ys.min())
    return dict(
        image_id=image_id,
        category_id=instance.label,
        bbox=[left, top, int(xs.max()) - left + 1, int(ys.max()) - top + 1],
        area=len(xs),
        iscrowd=0,
        segmentation=polygons_of(instance.mask),
    )


def polygons_of(mask: np.ndarray) -> List[List[float]]:
    """Return the COCO polygons of a mask (H, W) bool, exact when rasterised by pycocotools.

    Example:
        >>> polygons_of(np.ones((1, 1), bool))
        [[0.25, 0.25, 0.25, 0.75, 0.75, 0.75, 0.75, 0.25]]
    """
    # At twice the size contours run between the pixel centres instead of through them, so even a
    # single pixel has a contour of four points.
    double = mask.astype(np.uint8).repeat(2, axis=0).repeat(2, axis=1)
    contours, hierarchy = cv2.findContours(double, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_SIMPLE)
    for contour, (*_, parent) in zip(contours, hierarchy[0]):
        if parent >= 0:
            # COCO polygons cannot have holes, so cut the mask in two through this one.
            x, _, width, _ = cv2.boundingRect(contour)
            left, right = mask.copy(), mask.copy()
            cut = (x + width // 2) // 2
            left[:, cut:] = False
            right[:, :cut] = False
            return polygons_of(left) + polygons_of(right)
    return [((contour.reshape(-1) + 0.5) / 2).tolist() for contour in contours]


def square_crop(
    image: np.ndarray, bbox: Sequence[float], size: int = CROP_SIZE, scale: float = CROP_SCALE
) -> np.ndarray:
    """Crop a square around the centre of a box, shifted to lie inside the image.

    Args:
        image: (H, W, 3) uint8.
        bbox: x, y, width and height in pixels.
        size: side of the result in pixels.
        scale: ratio of the side of the square to the longer side of the box. The side is limited
            to that of the image.

    Returns:
        (size, size, 3) uint8.

    Example:
        >>> image = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
        >>> square_crop(image, (3, 0, 1, 2), 2, 1.0)[..., 0].tolist()  # rows 0, 1; columns 2, 3
        [[6, 9], [18, 21]]
    """
    x, y, width, height = bbox
    side = max(1, min(round(scale * max(width, height)), *image.shape[:2]))
    left, top = (
        min(max(int(start + (length - side) // 2), 0), full - side)
        for start, length, full in ((x, width, image.shape[1]), (y, height, image.shape[0]))
    )
    how = cv2.INTER_AREA if side > size else cv2.INTER_LINEAR
    return cv2.resize(image[top : top + side, left : left + side], (size, size), interpolation=how)


def _coco_json(records: List[Dict[str, Any]]) -> Dict[str, Any]:
    annotations = [annotation for record in records for annotation in record['annotations']]
    return dict(
        info=dict(description='Shapes, drawn by mmlinattn', version=str(VERSION)),
        licenses=[],
        images=[record['image'] for record in records],
        annotations=[dict(id=i, **a) for i, a in enumerate(annotations, 1)],
        categories=[
            dict(id=i, name=name, supercategory='shape') for i, name in enumerate(CLASSES, 1)
        ],
    )
