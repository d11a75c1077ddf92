"""Files and folders that are odd are named, and the others are read."""

import os
import shutil

import cv2
import numpy as np
import pytest
from PIL import Image

from mmlinattn.apis import open_sources
from mmlinattn.apis.sources import Source

IMAGE = np.random.default_rng(0).integers(0, 255, (40, 60, 3), np.uint8)


def read(folder, **kwargs):
    """Names of the frames that have an image, and faults of the others by their name."""
    (source,) = open_sources([str(folder)], **kwargs)
    frames = list(source)
    assert len(source) == len(frames)
    good = [frame.name for frame in frames if frame.image is not None]
    return good, {frame.name: frame.fault for frame in frames if frame.image is None}


def save(path, **kwargs):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(IMAGE).save(path, **kwargs)


def test_odd_files_are_named_and_the_others_read(tmp_path):
    save(tmp_path / 'good.png')
    save(tmp_path / 'folder.jpg' / 'inside.png')
    shutil.copy(tmp_path / 'good.png', os.fsencode(tmp_path) + b'/caf\xe9.png')
    (tmp_path / 'loop.jpg').symlink_to('loop.jpg')
    (tmp_path / 'dangling.jpg').symlink_to('nowhere.jpg')
    (tmp_path / 'around').symlink_to('.')
    (tmp_path / 'empty.bmp').touch()
    (tmp_path / 'zero.jpg').symlink_to('/dev/zero')
    os.mkfifo(tmp_path / 'pipe.jpg')
    good, faults = read(tmp_path)
    assert good == ['caf\udce9.png', 'folder.jpg/inside.png', 'good.png']
    reasons = {
        'dangling.jpg': 'No such file or directory',
        'empty.bmp': 'damaged, or no image',
        'loop.jpg': 'Too many levels of symbolic links',
        'pipe.jpg': 'not a regular file',
        'zero.jpg': 'not a regular file',
    }
    assert faults == {
        name: f'image {tmp_path / name} cannot be read: {reason}'
        for name, reason in reasons.items()
    }


def test_file_that_is_deleted_after_the_listing(tmp_path):
    for name in ('a.bmp', 'b.bmp'):
        save(tmp_path / name)
    (source,) = open_sources([str(tmp_path)])
    (tmp_path / 'a.bmp').unlink()
    first, second = source
    assert 'No such file' in first.fault and second.image is not None


def test_folder_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    save(tmp_path / 'a' / 'hidden.png')
    save(tmp_path / 'b' / 'seen.png')
    scandir = os.scandir

    def refusing(path):  # a test may run as root, for whom all folders are open
        if path == str(tmp_path / 'a'):
            raise PermissionError(13, 'Permission denied', path)
        return scandir(path)

    monkeypatch.setattr(os, 'scandir', refusing)
    good, faults = read(tmp_path)
    assert good == ['b/seen.png']
    assert faults['a'].startswith(f'folder {tmp_path / "a"} cannot be read: ')
    with pytest.raises(PermissionError):
        open_sources([str(tmp_path / 'a')])


def test_image_above_the_limits_is_not_decoded(tmp_path, monkeypatch):
    save(tmp_path / 'a.png')
    (tmp_path / 'b.png').write_bytes((tmp_path / 'a.png').read_bytes() + bytes(2_000_000))
    monkeypatch.setattr(cv2, 'imdecode', None)
    assert '60 x 40 = 0.0 megapixels' in read(tmp_path, max_megapixels=2399e-6)[1]['a.png']
    assert (
        '2 MB are more than 0.0024 megapixels need'
        in read(tmp_path, max_megapixels=2400e-6)[1]['b.png']
    )


SAVED = {
    'baseline.jpg': dict(quality=95), 'progressive.jpg': dict(quality=95, progressive=True),
    'rgb.png': {}, 'rgb.bmp': {}, 'rgb.ppm': {}, 'raw.tif': {},
    'lzw.tif': dict(compression='tiff_lzw'), 'lossy.webp': dict(quality=95),
    'lossless.webp': dict(lossless=True),
}  # fmt: skip
MODES = {
    'grey.jpg': 'L', 'cmyk.jpg': 'CMYK', 'grey.png': 'L', 'palette.png': 'P', 'alpha.png': 'RGBA',
    'grey_alpha.png': 'LA', 'bits.png': '1', 'palette.bmp': 'P', 'cmyk.tif': 'CMYK',
    'alpha.webp': 'RGBA',
}  # fmt: skip


@pytest.mark.parametrize('name', [*SAVED, *MODES, 'deep.png', 'deep.tif'])
def test_formats(tmp_path, name):
    path = tmp_path / name
    if name in SAVED:
        Image.fromarray(IMAGE).save(path, **SAVED[name])
    elif name in MODES:
        Image.fromarray(IMAGE).convert(MODES[name]).save(path)
    else:
        cv2.imwrite(str(path), IMAGE[..., ::-1].astype(np.uint16) * 257)
    (frame,) = Source('one', [path])
    np.testing.assert_array_equal(frame.read(), cv2.imread(str(path), cv2.IMREAD_COLOR))
    if name.startswith(('rgb', 'raw', 'lzw', 'lossless', 'deep')):
        np.testing.assert_array_equal(frame.read(), IMAGE[..., ::-1])
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    (frame,) = Source('one', [path])
    assert frame.image is None and 'cannot be read' in frame.fault


@pytest.mark.parametrize('size', [(1, 1), (1, 3000), (3000, 2), (2, 1)])
@pytest.mark.parametrize('suffix', ['png', 'jpg', 'tif', 'webp'])
def test_sizes(tmp_path, size, suffix):
    Image.new('RGB', size).save(tmp_path / f'a.{suffix}')
    (frame,) = open_sources([str(tmp_path / f'a.{suffix}')])[0]
    assert frame.read().shape == (size[1], size[0], 3)
