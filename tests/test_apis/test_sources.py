"""Files and folders that are odd are named, and the others are read."""

import os
import shutil

import cv2
import numpy as np
import pytest
from PIL import Image

from mmlinattn.apis import ImageError, image_files, read_image

IMAGE = np.random.default_rng(0).integers(0, 255, (40, 60, 3), np.uint8)


def save(path, **kwargs):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(IMAGE).save(path, **kwargs)


def test_odd_files_are_named_and_the_others_read(tmp_path):
    save(tmp_path / 'good.png')
    save(tmp_path / 'folder.jpg' / 'inside.png')
    (tmp_path / 'notes.txt').write_text('no image')
    shutil.copy(tmp_path / 'good.png', os.fsencode(tmp_path) + b'/caf\xe9.png')
    (tmp_path / 'loop.jpg').symlink_to('loop.jpg')
    (tmp_path / 'dangling.jpg').symlink_to('nowhere.jpg')
    (tmp_path / 'around').symlink_to('.')
    (tmp_path / 'empty.bmp').touch()
    (tmp_path / 'zero.jpg').symlink_to('/dev/zero')
    os.mkfifo(tmp_path / 'pipe.jpg')
    reasons = {
        'caf\udce9.png': '',
        'dangling.jpg': 'No such file or directory',
        'empty.bmp': 'the file is empty',
        'folder.jpg/inside.png': '',
        'good.png': '',
        'loop.jpg': 'Too many levels of symbolic links',
        'pipe.jpg': 'not a regular file',
        'zero.jpg': 'not a regular file',
    }
    files = image_files([str(tmp_path)])
    assert [*files] == [*reasons]
    for name, reason in reasons.items():
        if reason:
            with pytest.raises(ImageError) as caught:
                read_image(files[name])
            assert str(caught.value).startswith(f'image {tmp_path / name} cannot be read: {reason}')
        else:
            np.testing.assert_array_equal(read_image(files[name]), IMAGE[..., ::-1])


@pytest.mark.parametrize(
    'name, error, message',
    [
        ('nowhere.jpg', FileNotFoundError, "source 'nowhere.jpg' does not exist"),
        ('', FileNotFoundError, "a source is '': name a file or a folder"),
        ('notes.txt', ValueError, r"source 'notes.txt' is no image \(.jpg"),
        ('empty', ValueError, 'a folder without images'),
    ],
)
def test_sources_that_are_none(name, error, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'empty').mkdir()
    (tmp_path / 'notes.txt').write_text('x')
    with pytest.raises(error, match=message):
        image_files([name])


@pytest.mark.parametrize('name', ['one.jpg', 'below/one.jpg'])
def test_no_result_takes_the_place_of_another(name, tmp_path):
    for folder in 'xy':
        save(tmp_path / folder / name)
    sources = [str(tmp_path / folder / ('' if '/' in name else name)) for folder in 'xy']
    with pytest.raises(ValueError, match=f"x/.* and .*y/.* results of the name '{name}'"):
        image_files(sources)


def test_hidden_files_and_folders_are_left_out(tmp_path):
    folder = tmp_path / '.mine'
    for name in ('a.png', '._a.png', '.ipynb_checkpoints/a.png', 'b/.c/a.png'):
        save(folder / name)
    assert image_files([str(folder)]) == {'a.png': folder / 'a.png'}


def test_folder_that_cannot_be_read_is_an_error(tmp_path, monkeypatch):
    save(tmp_path / 'a' / 'hidden.png')
    scandir = os.scandir

    def refusing(path):  # a test may run as root, for whom all folders are open
        if path == str(tmp_path / 'a'):
            raise PermissionError(13, 'Permission denied', path)
        return scandir(path)

    monkeypatch.setattr(os, 'scandir', refusing)
    with pytest.raises(PermissionError):
        image_files([str(tmp_path)])


def test_image_above_the_limits_is_not_decoded(tmp_path, monkeypatch):
    save(tmp_path / 'a.png')
    monkeypatch.setattr(cv2, 'imdecode', None)
    with pytest.raises(ImageError, match='a.png .*60 x 40 = 0.0 megapixels are more than'):
        read_image(tmp_path / 'a.png', max_megapixels=2399e-6)


SAVED = {
    'baseline.jpg': dict(quality=95), 'progressive.jpg': dict(quality=95, progressive=True),
    'rgb.png': {}, 'rgb.bmp': {}, 'rgb.ppm': {}, 'raw.tif': {},
    'lzw.tif': dict(compression='tiff_lzw'), 'lossy.webp': dict(quality=95),
    'lossless.webp': dict(lossless=True), 'one.gif': {}, 'lossless.jp2': {},
    'lossy.avif': dict(quality=95), 'grey.pgm': {},
}  # fmt: skip
MODES = {
    'grey.jpg': 'L', 'cmyk.jpg': 'CMYK', 'grey.png': 'L', 'palette.png': 'P', 'alpha.png': 'RGBA',
    'grey_alpha.png': 'LA', 'bits.png': '1', 'palette.bmp': 'P', 'cmyk.tif': 'CMYK',
    'alpha.webp': 'RGBA',
}  # fmt: skip


@pytest.mark.parametrize('name', [*SAVED, *MODES, 'deep.png', 'deep.tif'])
def test_formats(tmp_path, name):
    """Read as OpenCV does; a file that is cut off is refused, where OpenCV fills it with grey."""
    path = tmp_path / name
    if name in SAVED:
        Image.fromarray(IMAGE).save(path, **SAVED[name])
    elif name in MODES:
        Image.fromarray(IMAGE).convert(MODES[name]).save(path)
    else:
        cv2.imwrite(str(path), IMAGE[..., ::-1].astype(np.uint16) * 257)
    by_opencv = cv2.imread(str(path), cv2.IMREAD_COLOR)
    if by_opencv is None:
        pytest.skip('an OpenCV that was built without this format')
    found = read_image(image_files([str(path)])[name])
    np.testing.assert_array_equal(found, by_opencv)
    if name.startswith(('rgb', 'raw', 'lzw', 'lossless', 'deep')):
        np.testing.assert_array_equal(found, IMAGE[..., ::-1])
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ImageError, match=f'{name} cannot be read'):
        read_image(path)


@pytest.mark.parametrize('size', [(1, 1), (1, 3000), (3000, 2)])
@pytest.mark.parametrize('suffix', ['png', 'jpg', 'tif', 'webp'])
def test_sizes(tmp_path, size, suffix):
    Image.new('RGB', size).save(tmp_path / f'a.{suffix}')
    assert read_image(tmp_path / f'a.{suffix}').shape == (size[1], size[0], 3)
