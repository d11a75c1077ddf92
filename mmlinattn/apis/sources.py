"""Image files to predict, and their pixels."""

import io
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Callable, Dict, List, Optional, Sequence

import cv2
import numpy as np
from PIL import UnidentifiedImageError

from ..datasets.audit.images import IMAGES, file_fault, image_size

MAX_MEGAPIXELS = 50.0


class ImageError(ValueError):
    """Image that cannot be read; the message names it."""


def image_files(sources: Sequence[str]) -> Dict[str, Path]:
    """Return the images of files and folders, by the name of their results.

    The name is that of the file, or its path below the folder.

    Args:
        sources: image files, and folders that are searched recursively.

    Raises:
        FileNotFoundError: a source does not exist.
        ValueError: a file is no image by its name, a folder has no images, or two images would
            have results of the same name.

    Example:
        >>> image_files(['nowhere.jpg'])
        Traceback (most recent call last):
            ...
        FileNotFoundError: source 'nowhere.jpg' does not exist
    """
    found: Dict[str, Path] = {}
    suffixes = ', '.join(IMAGES)
    for source in sources:
        path = Path(source)
        if not str(source):  # would be the current folder
            raise FileNotFoundError("a source is '': name a file or a folder")
        if not path.exists():
            raise FileNotFoundError(f'source {source!r} does not exist')
        paths = images_below(path) if path.is_dir() else [path]
        if not paths:
            raise ValueError(f'source {source!r} is a folder without images ({suffixes})')
        if not path.is_dir() and path.suffix.lower() not in IMAGES:
            raise ValueError(f'source {source!r} is no image ({suffixes})')
        for file in paths:
            name = file.relative_to(path).as_posix() if path.is_dir() else file.name
            if name in found and found[name] != file:
                raise ValueError(
                    f'{found[name]} and {file} would both have results of the name {name!r}: '
                    'predict them one by one, or the folder above them'
                )
            found[name] = file
    return found


def images_below(folder: Path) -> List[Path]:
    """Return the image files below a folder, sorted; raise OSError if one cannot be read.

    Hidden files and folders are left out, such as ``.ipynb_checkpoints``.
    """

    def fail(error: OSError) -> None:
        raise error

    return sorted(
        Path(parent, name)
        for parent, _, names in os.walk(folder, onerror=fail)
        for name in names
        if Path(name).suffix.lower() in IMAGES
        and not any(part.startswith('.') for part in Path(parent, name).relative_to(folder).parts)
    )


def read_image(
    path: Path,
    max_megapixels: float = MAX_MEGAPIXELS,
    load: Optional[Callable[[Path], np.ndarray]] = None,
    in_8_bits: bool = True,
) -> np.ndarray:
    """Return the pixels of an image file, (H, W, 3) uint8, BGR, as the frameworks read it.

    Args:
        path: the file.
        max_megapixels: limit of its pixels.
        load: another loader of the file, whose result is returned.
        in_8_bits: see :func:`mmlinattn.datasets.audit.images.reads_8_bits`.

    Raises:
        ImageError: the file is no image, damaged or truncated, or has more pixels than the limit.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would block
            raise ImageError('not a regular file')
        data = path.read_bytes()
        check_pixels(data, max_megapixels)
        # OpenCV fills what is missing with grey; `imread` crashes on names that are not UTF-8.
        fault = file_fault(data, in_8_bits)
        if fault:
            raise ImageError(fault)
        if load is not None:
            return load(path)
        image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
        if image is None:
            raise ImageError('OpenCV does not know its format')
    except Exception as error:  # decoders raise arbitrary exceptions on damaged files
        reason = getattr(error, 'strerror', None) or str(error) or type(error).__name__
        if load is not None and not isinstance(error, ImageError):
            reason = f'{type(error).__name__}: {error}'
        raise ImageError(f'image {path} cannot be read: {reason}') from error
    return image


def check_pixels(data: bytes, max_megapixels: float) -> None:
    """Raise ImageError if an image has more pixels than the limit."""
    with suppress(UnidentifiedImageError):  # a fault that is reported next
        height, width = image_size(io.BytesIO(data))
        if width * height > 1e6 * max_megapixels:
            raise ImageError(
                f'{width} x {height} = {width * height / 1e6:.1f} megapixels are more than the '
                f'limit of {max_megapixels:g}; use a smaller image or raise --max-megapixels'
            )
