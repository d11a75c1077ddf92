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
