"""Atomic creation of a Shapes data set, which never replaces other files."""

import json
import os
import shutil
from pathlib import Path
from typing import Any, Dict, Union

from ...utils import check_integer, staged_folder
from . import draw, layouts

FILE = 'shapes.json'


def generate(
    root: Union[str, os.PathLike] = 'data/shapes',
    num_train: int = 600,
    num_val: int = 150,
    image_size: int = 128,
    seed: int = 0,
) -> Path:
    """Write the data set to a directory, or do nothing if it already exists.

    The same parameters give the same files. They are written to a hidden directory beside
    ``root``, which is renamed to ``root`` when complete.

    Args:
        root: directory to create; returned as a path.
        num_train: number of training images, at least 1.
        num_val: number of validation images, at least 1.
        image_size: side of the square images in pixels, at least 32.
        seed: random seed, at least 0.

    Raises:
        ValueError: an argument is out of range.
        FileExistsError: ``root`` exists and is something else, or a set with other parameters.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     root = generate(folder + '/shapes', num_train=2, num_val=1)
        ...     sorted(path.name for path in root.iterdir())
        ['ade', 'cityscapes', 'coco', 'imagenet', 'shapes.json']
    """
    parameters = dict(
        version=layouts.VERSION,
        num_train=check_integer('num_train', num_train, 1),
        num_val=check_integer('num_val', num_val, 1),
        image_size=check_integer('image_size', image_size, draw.MIN_IMAGE_SIZE),
        seed=check_integer('seed', seed, 0),
        shapes_per_image=[draw.MIN_SHAPES, draw.MAX_SHAPES],
        relative_diameter=[draw.MIN_DIAMETER, draw.MAX_DIAMETER],
        min_visible=draw.MIN_VISIBLE,
        min_contrast=draw.MIN_CONTRAST,
        jpeg_quality=layouts.JPEG_QUALITY,
        crop_size=layouts.CROP_SIZE,
        crop_scale=layouts.CROP_SCALE,
    )
    target = Path(root).resolve()
    if is_there(target, FILE, 'Shapes', parameters):
        print(f'Shapes in {root} is up to date')
        return Path(root)
    with staged_folder(target) as staging:
        layouts.write_set(staging, parameters)
        if is_there(target, FILE, 'Shapes', parameters):  # another process has written it meanwhile
            shutil.rmtree(staging)
    return Path(root)


def is_there(root: Path, file: str, name: str, parameters: Dict[str, Any]) -> bool:
    """Return True if the set is already at root; raise FileExistsError if something else is."""
    if not root.exists():
        return False
    try:
        description = json.loads((root / file).read_bytes())
        known = description.get('format', layouts.FORMAT) == layouts.FORMAT
        found = description['parameters'] if known else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        found = None
    if not isinstance(found, dict):
        raise FileExistsError(f'{root} exists and is not a {name} set: choose another root')
    differing = [
        f'{name} is {found.get(name)!r} instead of {parameters.get(name)!r}'
        for name in sorted(found.keys() | parameters.keys())
        if found.get(name) != parameters.get(name)
    ]
    if differing:
        raise FileExistsError(
            f'{root} is a {name} set with other parameters: {", ".join(differing)}. Choose another '
            'root, or remove it'
        )
    return True
