"""Is an image file whole? Decoders fill what is missing with grey, and say nothing."""

import io
import os
import warnings
import zlib
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Optional, Tuple, Union

from PIL import ExifTags, Image

from ..files import open_regular

JPEG, PNG = b'\xff\xd8', b'\x89PNG\r\n\x1a\n'
TIFF, EXIF = (b'II', b'MM'), (b'Exif', b'eXIf', b'EXIF')
JPEG_END = b'\xff\xd9'
PNG_END = b'\x00\x00\x00\x00IEND\xaeB`\x82'
TAIL = 4096
MAX_MEGAPIXELS = 50.0


class TooManyPixels(ValueError):
    """An image with more pixels than the limit; the message names it, its size and the limit."""


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
    # Pillow takes as long for its search as OpenCV for a small image: look for the marks first.
    if not data.startswith(TIFF) and not any(mark in data for mark in EXIF):
        return 1
    with suppress(Exception), Image.open(io.BytesIO(data)) as image:  # damaged: found elsewhere
        orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
        return orientation if orientation in range(1, 9) else 1
    return 1


def check_pixels(
    file: Union[str, Path, BinaryIO], name: str, max_megapixels: float = MAX_MEGAPIXELS
) -> None:
    """Refuse an image with too many pixels before it is decoded.

    A compressed file of half a megabyte can have 13000 x 13000 pixels, which take gigabytes.

    Args:
        file: path, or an open file at its beginning.
        name: name of the image in the error message.
        max_megapixels: limit in millions of pixels.

    Raises:
        TooManyPixels: the image has more.
        OSError: the file cannot be read, or Pillow does not know its format.

    Example:
        >>> file = io.BytesIO()
        >>> Image.new('RGB', (2000, 1000)).save(file, 'png')
        >>> check_pixels(file, 'a.png', max_megapixels=1)
        Traceback (most recent call last):
            ...
        mmlinattn.datasets.images.TooManyPixels: image a.png has 2000 x 1000 = 2.0 megapixels, \
the limit is 1: use a smaller image or raise the limit
    """
    try:
        height, width = image_size(file)
    except Image.DecompressionBombError as error:
        raise TooManyPixels(f'image {name}: {error}') from error
    check_pixel_count((height, width), f'image {name}', max_megapixels)


def check_pixel_count(shape: Tuple[int, int], what: str, max_megapixels: float) -> None:
    """Refuse an image or a video whose size is known.

    Args:
        shape: (height, width).
        what: begins the error message.
        max_megapixels: limit in millions of pixels.

    Raises:
        TooManyPixels: it has more.
    """
    height, width = shape
    if height * width > 1e6 * max_megapixels:
        raise TooManyPixels(
            f'{what} has {width} x {height} = {height * width / 1e6:.1f} megapixels, '
            f'the limit is {max_megapixels:g}: use a smaller image or raise the limit'
        )


def why_incomplete(data: bytes) -> Optional[str]:
    """What an image file lacks; None for a whole one.

    A JPEG whose last mark is there, and a PNG whose check sums are right, are whole; any other file
    is decoded. Changed bytes inside a JPEG, which has no check sums, cannot be seen.

    Args:
        data: content of the file, of any format that Pillow knows.

    Example:
        >>> file = io.BytesIO()
        >>> Image.new('RGB', (64, 64)).save(file, 'jpeg')
        >>> [why_incomplete(data) is None for data in (file.getvalue(), file.getvalue()[:-100])]
        [True, False]
    """
    if data.startswith(JPEG) and _has_end(data):
        return None
    if data.startswith(PNG):
        return _why_incomplete_png(data)
    try:
        with Image.open(io.BytesIO(data)) as image:
            image.load()
    except Exception as error:  # decoders raise whatever they like on damaged files
        return ' '.join(str(error).split()) or type(error).__name__
    return None


def why_incomplete_file(path: Union[str, Path]) -> Optional[str]:
    """:func:`why_incomplete` of a file, which reads no more of it than its ends where these tell.

    The check sums of a PNG are left to its decoder, which looks at them.

    Raises:
        OSError: a file that cannot be read.
    """
    with open_regular(str(path)) as file:
        head = file.read(len(PNG))
        file.seek(max(os.fstat(file.fileno()).st_size - TAIL, 0))
        tail = file.read()
        if head == PNG:
            return None if tail.endswith(PNG_END) else 'a PNG without its end'
        if head.startswith(JPEG) and _has_end(tail):
            return None
        file.seek(0)
        return why_incomplete(file.read())


def _has_end(data: bytes) -> bool:
    # Some writers fill up with zeros.
    return data[-TAIL:].rstrip(b'\0').endswith(JPEG_END)


def _why_incomplete_png(data: bytes) -> Optional[str]:
    place = len(PNG)
    while place < len(data):
        length = int.from_bytes(data[place : place + 4], 'big')
        content = data[place + 4 : place + 8 + length]
        end = place + 12 + length
        if end > len(data):
            return f'a PNG that is cut off at byte {len(data)}'
        if zlib.crc32(content) != int.from_bytes(data[end - 4 : end], 'big'):
            return f'a PNG whose content has changed at byte {place}'
        if content[:4] == b'IEND':
            return None
        place = end
    return 'a PNG without its end'
