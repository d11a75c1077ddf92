"""The limit of pixels is enforced from the header, before an image is decoded."""

import io
import struct
import tracemalloc
import zlib

import pytest
from PIL import Image

from mmlinattn.datasets.audit.images import TooManyPixels, check_pixels, image_size


def png(width, height):
    """Return a PNG whose header names a size and whose pixels are missing."""

    def chunk(kind, content):
        check = struct.pack('>I', zlib.crc32(kind + content))
        return struct.pack('>I', len(content)) + kind + content + check

    header = struct.pack('>IIBBBBB', width, height, 8, 2, 0, 0, 0)
    data = chunk(b'IDAT', zlib.compress(b''))
    return b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', header) + data + chunk(b'IEND', b'')


@pytest.mark.parametrize('kind', ['jpeg', 'png', 'bmp', 'tiff', 'webp', 'ppm'])
def test_size_is_read_of_every_format(kind, tmp_path):
    path = tmp_path / f'a.{kind}'
    Image.new('RGB', (70, 31)).save(path, kind)
    assert image_size(path) == (31, 70)
    check_pixels(path, 'a', max_megapixels=70 * 31 / 1e6)
    with pytest.raises(TooManyPixels, match='image a has 70 x 31 = 0.0 megapixels'):
        check_pixels(path, 'a', max_megapixels=(70 * 31 - 1) / 1e6)


@pytest.mark.parametrize('side', [7100, 13000, 20000, 2**31 - 1])
def test_large_image_is_refused_without_decoding(side):
    tracemalloc.start()
    with pytest.raises(TooManyPixels, match=r'image b\.png'):
        check_pixels(io.BytesIO(png(side, side)), 'b.png')
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2e6


def test_file_that_is_no_image_is_an_error():
    with pytest.raises(OSError, match='cannot identify'):
        check_pixels(io.BytesIO(b'no image'), 'c')
