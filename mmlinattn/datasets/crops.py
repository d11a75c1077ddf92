"""Classification data sets from crops of the objects of a COCO data set."""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any, Dict, Optional, Sequence, Union

import cv2
import numpy as np

from ..utils import check_integer, staged_folder, write_json
from .shapes.layouts import JPEG_QUALITY, square_crop

DESCRIPTION = 'crops.json'


def crop_objects(
    source: Union[str, os.PathLike],
    root: Union[str, os.PathLike],
    splits: Dict[str, Sequence[str]],
    size: int = 64,
    scale: float = 1.25,
    max_per_class: Optional[Dict[str, int]] = None,
    seed: int = 0,
) -> Path:
    """Write ``root/<split>/<class>/*.jpg``, one square crop per box, and ``root/crops.json``.

    The same arguments give the same files. They are written to a hidden folder beside ``root``,
    which is renamed to ``root`` when complete. An existing set with the same arguments is kept.

    Args:
        source: folder with ``images/`` and ``annotations/<name>.json`` in COCO format.
        root: folder to create.
        splits: new split -> names of its annotation files.
        size, scale: size and scale of the crops, see
            :func:`mmlinattn.datasets.shapes.layouts.square_crop`.
        max_per_class: split -> maximum number of crops per class, sampled with ``seed``; default:
            all crops.
        seed: random seed of the sampling.

    Returns:
        ``root`` as a path.

    Raises:
        ValueError: a size or number is not positive, or a box has no extent.
        FileNotFoundError: an annotation file or image does not exist.
        FileExistsError: ``root`` exists and is not this set.

    Example::

        crop_objects('data/bccd', 'data/cells', dict(train=['train'], val=['val', 'test']))
    """
    size = check_integer('size', size)
    limits = {
        name: check_integer(f'max_per_class[{name!r}]', number)
        for name, number in (max_per_class or {}).items()
    }
    unknown = sorted(set(limits) - set(splits))
    if unknown:
        raise ValueError(f'max_per_class is for {unknown}, splits are {list(splits)}')
    if not scale > 0:
        raise ValueError(f'scale must be positive, got {scale}')
    source, root = Path(source), Path(root)
    parameters = dict(
        source=source.name, splits={split: list(names) for split, names in splits.items()},
        size=size, scale=scale, max_per_class=limits, seed=seed,
    )  # fmt: skip
    if root.exists():
        if _parameters_of(root) != parameters:
            raise FileExistsError(f'{root} exists and is not the set of crops {parameters}')
        return root
    with staged_folder(root) as staging:
        counts = {split: _write_split(source, staging, parameters, split) for split in splits}
        write_json(staging / DESCRIPTION, dict(parameters=parameters, counts=counts))
    return root


def _parameters_of(root: Path) -> Optional[Dict[str, Any]]:
    try:
        return json.loads((root / DESCRIPTION).read_bytes())['parameters']
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _write_split(
    source: Path, root: Path, parameters: Dict[str, Any], split: str
) -> Dict[str, int]:
    """Write the crops of a split and return their number per class."""
    boxes, folder = [], root / split
    for name in parameters['splits'][split]:
        coco = json.loads((source / 'annotations' / f'{name}.json').read_bytes())
        classes = {category['id']: category['name'] for category in coco['categories']}
        files = {image['id']: image['file_name'] for image in coco['images']}
        for a in coco['annotations']:
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
        cv2.imwrite(str(path), crop, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])
        counts[label] += 1
    return dict(sorted(counts.items()))
