"""Is an image file whole? Decoders fill what is missing with grey, and say nothing."""

import io
import os
import zlib
from pathlib import Path
from typing import Optional, Union

from PIL import Image

JPEG, PNG = b'\xff\xd8', b'\x89PNG\r\n\x1a\n'
JPEG_END = b'\xff\xd9'
PNG_END = b'\x00\x00\x00\x00IEND\xaeB`\x82'
TAIL = 4096


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
    with open(path, 'rb') as file:
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
