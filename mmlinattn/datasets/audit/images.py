"""Checks that image files are complete. Decoders silently fill missing parts with grey."""

import io
import warnings
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Optional, Tuple, Union

from PIL import ExifTags, Image

JPEG, PNG = b'\xff\xd8', b'\x89PNG\r\n\x1a\n'
JPEG_END = b'\xff\xd9'
TAIL = 4096
MAX_MEGAPIXELS = 50.0


class TooManyPixels(ValueError):
    """Error for an image above the pixel limit; the message names image, size and limit."""


def image_size(file: Union[str, Path, BinaryIO]) -> Tuple[int, int]:
    """Return (height, width) from the header of an image file, without decoding its pixels.

    Args:
        file: path, or an open file at its beginning.

    Raises:
        OSError: the file cannot be read, or Pillow does not know its format.
        PIL.Image.DecompressionBombError: more than twice ``PIL.Image.MAX_IMAGE_PIXELS`` pixels.

    Example:
        >>> file = io.BytesIO()
        >>> Image.new('RGB', (64, 48)).save(file, 'png')
        >>> image_size(file)
        (48, 64)
    """
    with warnings.catch_warnings():
        warnings.simplefilter('ignore', Image.DecompressionBombWarning)
        with Image.open(file) as image:
            width, height = image.size
    return height, width


def exif_orientation(data: bytes) -> int:
    """Return the EXIF orientation of an image file, 1 (upright) to 8; 1 if it has none.

    Args:
        data: content of the file.

    Example:
        >>> file, exif = io.BytesIO(), Image.Exif()
        >>> exif[ExifTags.Base.Orientation] = 6
        >>> Image.new('RGB', (64, 48)).save(file, 'jpeg', exif=exif)
        >>> exif_orientation(file.getvalue())
        6
    """
    # Damaged files are reported by other checks.
    with suppress(Exception), Image.open(io.BytesIO(data)) as image:
        return image.getexif().get(ExifTags.Base.Orientation, 1)
    return 1


def check_pixels(
    file: Union[str, Path, BinaryIO], name: str, max_megapixels: float = MAX_MEGAPIXELS
) -> None:
    """Raise TooManyPixels if an image has too many pixels, before it is decoded.

    A compressed file of half a megabyte can have 13000 x 13000 pixels, which take gigabytes.

    Args:
        file: path, or an open file at its beginning.
        name: name of the image in the error message.
        max_megapixels: limit in millions of pixels.

    Raises:
        TooManyPixels: the image exceeds the limit.
        OSError: the file cannot be read, or Pillow does not know its format.

    Example:
        >>> file = io.BytesIO()
        >>> Image.new('RGB', (2000, 1000)).save(file, 'png')
        >>> check_pixels(file, 'a.png', max_megapixels=1)
        Traceback (most recent call last):
            ...
        mmlinattn.datasets.audit.images.TooManyPixels: image a.png has 2000 x 1000 = 2.0 \
megapixels, \
the limit is 1: use a smaller image or raise the limit
    """
    try:
        height, width = image_size(file)
    except Image.DecompressionBombError as error:
        raise TooManyPixels(f'image {name}: {error}') from error
    check_pixel_count((height, width), f'image {name}', max_megapixels)


def check_pixel_count(shape: Tuple[int, int], what: str, max_megapixels: float) -> None:
    """Raise TooManyPixels if an image or video of this size has too many pixels.

    Args:
        shape: (height, width).
        what: prefix of the error message.
        max_megapixels: limit in millions of pixels.
    """
    height, width = shape
    if height * width > 1e6 * max_megapixels:
        raise TooManyPixels(
            f'{what} has {width} x {height} = {height * width / 1e6:.1f} megapixels, '
            f'the limit is {max_megapixels:g}: use a smaller image or raise the limit'
        )


def truncation_reason(data: bytes) -> Optional[str]:
    """Return why an image file is incomplete, or None if it is complete.

    A JPEG is complete if it has its end marker, a PNG if its checksums match. Any other file is
    decoded. Changed bytes inside a JPEG, which has no checksums, are not detected.

    Args:
        data: content of the file, in any format that Pillow knows.

    Example:
        >>> file = io.BytesIO()
        >>> Image.new('RGB', (64, 64)).save(file, 'jpeg')
        >>> [truncation_reason(data) is None for data in (file.getvalue(), file.getvalue()[:-100])]
        [True, False]
    """
    # Some writers pad the file with zeros.
    if data.startswith(JPEG) and data[-TAIL:].rstrip(b'\0').endswith(JPEG_END):
        return None
    try:
        with Image.open(io.BytesIO(data)) as image:
            image.verify() if data.startswith(PNG) else image.load()
    except Exception as error:  # each decoder has its own exceptions for damaged files
        return ' '.join(str(error).split()) or type(error).__name__
    return None
