#!/usr/bin/env python
"""Crop the objects of a detection set in COCO format to a classification set in ImageNet layout.

OUT/train is made from SOURCE/annotations/train.json, OUT/val from val.json and, if it exists,
test.json.
"""

import argparse
import json
from collections import Counter
from hashlib import sha256
from pathlib import Path
from typing import Any, Dict, List

import cv2
import numpy as np

from mmlinattn.datasets.shapes.install import is_there
from mmlinattn.datasets.shapes.layouts import JPEG_QUALITY, square_crop
from mmlinattn.utils import check_integer, outside_reason, staged_folder, write_json
from mmlinattn.utils.command_line import errors_in_one_line

DESCRIPTION = 'crops.json'


def crop_objects(
    source: Path, root: Path, splits: Dict[str, List[str]], size: int, scale: float,
    max_per_class: Dict[str, int], seed: int,
) -> None:  # fmt: skip
    """Write ``root/<split>/<class>/*.jpg``, one square crop per box, and ``root/crops.json``.

    An existing set of the same annotations and arguments is kept. ``splits`` has the annotation
    files of each.
    """
    for split, number in max_per_class.items():
        check_integer(f'max_per_class of {split}', number)
    if not scale > 0:
        raise ValueError(f'scale must be positive, got {scale}')
    digest = sha256()
    for name in sorted({name for names in splits.values() for name in names}):
        digest.update((source / 'annotations' / f'{name}.json').read_bytes())
    parameters = dict(
        source=source.name, sha256_of_annotations=digest.hexdigest()[:8], splits=splits,
        size=check_integer('size', size), scale=scale, max_per_class=max_per_class, seed=seed,
    )  # fmt: skip
    if is_there(root, DESCRIPTION, 'crops', parameters):
        return
    with staged_folder(root) as staging:
        counts = {split: _write_split(source, staging, parameters, split) for split in splits}
        write_json(staging / DESCRIPTION, dict(parameters=parameters, counts=counts))


def _write_split(
    source: Path, root: Path, parameters: Dict[str, Any], split: str
) -> Dict[str, int]:
    """Write the crops of a split and return their number per class."""
    boxes, folder = [], root / split
    for name in parameters['splits'][split]:
        coco = json.loads((source / 'annotations' / f'{name}.json').read_bytes())
        classes = {category['id']: category['name'] for category in coco['categories']}
        files = {image['id']: image['file_name'] for image in coco['images']}
        for label in classes.values():
            if label in ('', '.', '..') or Path(label).name != label:
                raise ValueError(f'{name}.json: the class {label!r} cannot be the name of a folder')
        for file in files.values():
            outside = outside_reason(str(source / 'images' / file), [str(source / 'images')])
            if outside:
                raise ValueError(f'{name}.json: {file!r} {outside}')
        for a in coco['annotations']:
            if a.get('iscrowd'):  # no single object
                continue
            if min(a['bbox'][2:]) <= 0:
                raise ValueError(f'{name}.json: annotation {a["id"]} has the box {a["bbox"]}')
            boxes.append((classes[a['category_id']], files[a['image_id']], a['id'], a['bbox']))
        for label in classes.values():  # empty classes need a folder: readers number the folders
            (folder / label).mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(parameters['seed'])
    counts: Counter[str] = Counter()
    for i in generator.permutation(len(boxes)):
        label, file, number, bbox = boxes[i]
        if counts[label] == parameters['max_per_class'].get(split):
            continue
        image = cv2.imread(str(source / 'images' / file))
        if image is None:
            raise FileNotFoundError(f'{source / "images" / file} is missing or no picture')
        crop = square_crop(image, bbox, parameters['size'], parameters['scale'])
        path = folder / label / f'{Path(file).stem}_{number}.jpg'
        if path.exists():
            raise ValueError(f'two boxes would be {path.name}: give one image another name')
        jpeg = cv2.imencode('.jpg', crop, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])[1]
        path.write_bytes(jpeg.tobytes())  # cv2.imwrite raises no error
        counts[label] += 1
    return dict(sorted(counts.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add('source', type=Path, help='folder with images/ and annotations/{train,val}.json')
    add('out', type=Path, help='folder to create')
    add('--size', type=int, default=64, help='side of a crop in pixels')
    add('--scale', type=float, default=1.25, help='side of a crop over the longer side of its box')
    add('--max-per-class', type=int, help='of the training split, drawn at random')
    add('--max-per-class-val', type=int, help='of the validation split')
    add('--seed', type=int, default=0)
    args = parser.parse_args()
    held_out = ['val'] + ['test'] * (args.source / 'annotations/test.json').is_file()
    splits = dict(train=['train'], val=held_out)
    limits = dict(train=args.max_per_class, val=args.max_per_class_val)
    limits = {split: most for split, most in limits.items() if most is not None}
    with errors_in_one_line():
        crop_objects(args.source, args.out, splits, args.size, args.scale, limits, args.seed)
    print(f'crops are in {args.out}')


if __name__ == '__main__':
    main()
