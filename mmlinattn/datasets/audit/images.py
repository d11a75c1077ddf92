"""Checks that image files are complete. Decoders silently fill missing parts with grey."""

import io
import warnings
from pathlib import Path
from typing import Any, BinaryIO, Mapping, Optional, Tuple, Union

import cv2
import numpy as np
from PIL import Image, UnidentifiedImageError

# Formats that Pillow checks and OpenCV decodes; for some of them both need an optional library.
IMAGES = (
    '.jpg', '.jpeg', '.png', '.bmp', '.tif', '.tiff', '.webp', '.ppm', '.pgm', '.gif', '.jp2',
    '.avif',
)  # fmt: skip


def image_size(file: Union[str, Path, BinaryIO]) -> Tuple[int, int]:
    """Return (height, width) from the header of an image file, or raise Pillow's errors."""
    with warnings.catch_warnings():
        warnings.simplefilter('ignore', Image.DecompressionBombWarning)
        with Image.open(file) as image:
            return image.height, image.width


def too_dark(largest: int) -> Optional[str]:
    """Return why 16-bit values up to ``largest`` would be black in 8 bits, or None.

    Example:
        >>> too_dark(4095), too_dark(65535)
        ('its 16-bit values end at 4095, black in 8 bits: scale them to 65535', None)
    """
    if not 0 < largest < 4096:
        return None
    return f'its 16-bit values end at {largest}, black in 8 bits: scale them to 65535'


def reads_8_bits(kind: str, options: Mapping) -> bool:
    """Return True if a loading step, by the name of its type, reads images into 8 bits."""
    # Other steps may keep more bits, and read formats that Pillow does not know.
    if options.get('color_type') == 'unchanged' or options.get('imdecode_backend') == 'tifffile':
        return False
    return kind == 'LoadImageFromFile'


def file_fault(data: bytes, in_8_bits: bool = True) -> Optional[str]:
    """Return why an image file would be read wrongly, or None.

    It is empty, no image, cut off, or has 16-bit values below 4096, which become nearly black. The
    checksums of a PNG are compared, and a JPEG is decoded at an eighth of its size. Other files are
    decoded, unless ``in_8_bits`` is False. Changed bytes inside a JPEG, which has no checksums, may
    not be detected.
    """
    if not data:
        return 'the file is empty'
    try:
        with Image.open(io.BytesIO(data)) as image:
            if not in_8_bits and image.format not in ('JPEG', 'PNG'):
                return None
            if in_8_bits and image.mode.startswith('I'):
                largest: Any = image.getextrema()[1]
                return too_dark(largest)
            if image.format == 'PNG':
                image.verify()
                if in_8_bits and data[24] == 16:  # bits of each colour
                    values = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
                    return None if values is None else too_dark(int(values[..., :3].max()))
            else:
                image.draft('RGB', (1, 1))
                image.load()
    except UnidentifiedImageError:
        return 'damaged, or no image' if in_8_bits else None
    except Exception as error:  # each decoder has its own exceptions for damaged files
        return ' '.join(str(error).split()) or type(error).__name__
    return None
