"""Files that are cut or changed are told from whole ones."""

import io

import numpy as np
import pytest
from PIL import Image

from mmlinattn.datasets.audit.images import file_fault, reads_8_bits

pytestmark = pytest.mark.filterwarnings('ignore::UserWarning:PIL')
PICTURE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8))


def content(kind, **options):
    file = io.BytesIO()
    PICTURE.save(file, kind, **options)
    return file.getvalue()


WHOLE = {
    'jpeg': content('jpeg'),
    'jpeg-progressive': content('jpeg', progressive=True),
    'png': content('png'),
    'bmp': content('bmp'),
    'tiff': content('tiff', compression='tiff_lzw'),
    'webp': content('webp', lossless=True),
}


@pytest.fixture(params=WHOLE)
def data(request):
    return WHOLE[request.param]


def test_whole(data):
    assert file_fault(data) is None


@pytest.mark.parametrize('kept', [0.0, 0.02, 0.3, 0.9, 0.999])
def test_cut_off(data, kept):
    assert file_fault(data[: int(kept * len(data))])


@pytest.mark.parametrize(
    'kind, options, in_8_bits',
    [
        ('LoadImageFromFile', {}, True),
        ('LoadImageFromFile', dict(color_type='grayscale'), True),
        ('LoadImageFromFile', dict(color_type='unchanged'), False),
        ('LoadImageFromFile', dict(imdecode_backend='tifffile'), False),
        ('LoadArray', {}, False),
    ],
)
def test_steps_that_keep_more_bits_read_other_files(kind, options, in_8_bits):
    assert reads_8_bits(kind, options) == in_8_bits
    file = io.BytesIO()
    Image.fromarray(np.full((4, 4), 199, np.uint16)).save(file, 'png')
    whole, cut = file.getvalue(), WHOLE['jpeg'][:900]
    found = [bool(file_fault(data, in_8_bits)) for data in (whole, b'of an own format', cut)]
    assert found == [in_8_bits, in_8_bits, True]


def test_what_cameras_write_behind_the_end():
    for behind in (bytes(300), b'made with a camera' * 10):
        assert file_fault(WHOLE['jpeg'] + behind) is None


def test_any_changed_byte_of_a_png():
    data = WHOLE['png']
    for place in range(8, len(data) - 12, 97):
        changed = bytearray(data)
        changed[place] ^= 16
        assert file_fault(bytes(changed)), place
