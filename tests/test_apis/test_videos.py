"""Videos are containers, whole, and small enough; nothing else is opened because of one."""

import os
import struct

import cv2
import numpy as np
import pytest

from mmlinattn.apis import open_sources, sources, videos
from mmlinattn.apis.videos import OPTIONS, frame_rate, opened_video, video_truncation_reason

FRAMES = 30
OPTIONS_WORK = not cv2.__version__.startswith('4.11.')  # which ignores them
CONTAINERS = {
    'a.mp4': 'mp4v', 'a.m4v': 'mp4v', 'a.mov': 'mp4v', 'a.avi': 'MJPG', 'b.avi': 'XVID',
    'a.mkv': 'mp4v', 'a.webm': 'VP80', 'a.ts': 'mp4v',
}  # fmt: skip


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp('videos')
    draw = np.random.default_rng(0)
    frames = draw.integers(0, 255, (FRAMES, 64, 96, 3), np.uint8)
    for name, code in CONTAINERS.items():
        form = (cv2.CAP_FFMPEG, cv2.VideoWriter_fourcc(*code), 10, (96, 64))
        video = cv2.VideoWriter(str(folder / name), *form)
        assert video.isOpened(), name
        for frame in frames:
            video.write(frame)
        video.release()
    (folder / 'a.ts').rename(folder / 'a.mpg')  # the suffix of a transport stream, too
    return folder


def read(path, **kwargs):
    """Number of frames with an image, and the fault at the end."""
    (source,) = open_sources([str(path)], **kwargs)
    frames = list(source)
    return sum(frame.image is not None for frame in frames), frames[-1].fault


def test_containers_are_read_to_their_end(folder):
    for path in folder.iterdir():
        assert read(path) == (FRAMES, ''), path
        assert frame_rate(str(path)) == 10, path


@pytest.mark.parametrize('name', ['a.avi', 'b.avi', 'a.mkv', 'a.webm'])
@pytest.mark.parametrize('part', [0.5, 0.95])
def test_cut_video_is_named(folder, tmp_path, name, part):
    whole = (folder / name).read_bytes()
    path = tmp_path / name
    path.write_bytes(whole[: int(part * len(whole))])
    number, fault = read(path)
    assert 0 < number <= FRAMES
    assert f'is cut off after {path.stat().st_size} of {len(whole)} bytes: only {number} ' in fault


def boxes(*sizes):
    """Boxes of MP4 with their kinds and sizes, 8 bytes of content each."""
    return b''.join(struct.pack('>I4sQ', size, kind, 0) for kind, size in sizes)


@pytest.mark.parametrize(
    'content, cut',
    [
        (boxes((b'ftyp', 16), (b'moov', 16), (b'mdat', 16)), False),
        (boxes((b'ftyp', 16), (b'moov', 16), (b'mdat', 17)), True),
        (boxes((b'ftyp', 16), (b'moov', 16), (b'mdat', 0)), False),  # all that follows
        (boxes((b'ftyp', 16), (b'moov', 16), (b'mdat', 16), (b'free', 90)), False),
        (struct.pack('>I4sQ', 1, b'mdat', 16), False),  # a size of 64 bits
        (struct.pack('>I4sQ', 1, b'mdat', 17), True),
        (struct.pack('>I4sQ', 1, b'mdat', 1), False),
        (b'\x1aE\xdf\xa3\x81\0\x18S\x80g\x82\0\0', False),
        (b'\x1aE\xdf\xa3\x81\0\x18S\x80g\x83\0\0', True),
        (b'\x1aE\xdf\xa3\x81\0\x18S\x80g\xff\0\0', False),  # a recording of unknown size
        (b'\x1aE\xdf\xa3', False),
        (b'RIFF\4\0\0\0AVI RIFF\5\0\0\0AVIX', True),
        (b'RIFF\4\0\0\0AVI RIFF\4\0\0\0AVIX', False),
        (b'', False),
    ],
)
def test_announced_length(tmp_path, content, cut):
    (tmp_path / 'a').write_bytes(content)
    assert (video_truncation_reason(str(tmp_path / 'a')) is not None) == cut


PLAYLISTS = {
    'hls': '#EXTM3U\n#EXT-X-TARGETDURATION:3\n#EXTINF:3,\n{}/a.mpg\n#EXT-X-ENDLIST\n',
    'ffconcat': "ffconcat version 1.0\nfile '{}/a.mp4'\n",
}


@pytest.mark.parametrize('suffix', sources.VIDEOS)
@pytest.mark.parametrize('kind', PLAYLISTS)
def test_playlist_is_refused_by_content(folder, tmp_path, kind, suffix, monkeypatch):
    path = tmp_path / f'list{suffix}'
    path.write_text(PLAYLISTS[kind].format(folder))
    monkeypatch.setenv(OPTIONS, 'safe;0|protocol_whitelist;file|allowed_extensions;ALL')
    if OPTIONS_WORK:
        assert cv2.VideoCapture(str(path), cv2.CAP_FFMPEG).read()[0], 'without the limits it opens'
    with pytest.raises(ValueError, match='cannot be opened: damaged, or not MP4'):
        open_sources([str(path)])
    assert os.environ[OPTIONS].startswith('safe;0')  # of the caller
    monkeypatch.setattr(videos, 'OPTIONS', 'ANOTHER_VARIABLE')  # options without effect
    with pytest.raises(ValueError, match='cannot be opened: damaged, or not MP4'):
        open_sources([str(path)])


@pytest.mark.parametrize('kind', PLAYLISTS)
@pytest.mark.skipif(not OPTIONS_WORK, reason='OpenCV 4.11 ignores the capture options')
def test_playlist_is_refused_by_the_options_alone(folder, tmp_path, kind, monkeypatch):
    path = tmp_path / 'list.mp4'
    path.write_text(PLAYLISTS[kind].format(folder))
    monkeypatch.setattr(videos, '_is_container', lambda _: True)
    with pytest.raises(ValueError, match='cannot be opened: damaged, or not MP4'):
        open_sources([str(path)])


def alias(path):
    """A data reference of a MOV to another file in the same folder."""
    name = path.name.encode()
    record = bytes(50) + bytes([len(name)]) + name.ljust(63, b'\0') + bytes(16)
    record += struct.pack('>hh', 1, 1) + bytes(16)
    full = b'/x/' + name
    record += struct.pack('>hH', 2, len(full)) + full + bytes(len(full) % 2)
    record += struct.pack('>hH', -1, 0)
    entry = struct.pack('>I4sI', 12 + len(record), b'alis', 0) + record
    return struct.pack('>I4sII', 16 + len(entry), b'dref', 0, 1) + entry


def with_frames_elsewhere(whole, path):
    """The MOV, without its frames, that refers to ``path`` for them."""
    start, end = whole.index(b'mdat') + 4, whole.index(b'moov') - 4
    place = whole.index(b'dref') - 4
    assert end < place  # frames lie before the header, which may grow
    length = struct.unpack('>I', whole[place : place + 4])[0]
    out = bytearray(whole[:place] + alias(path) + whole[place + length :])
    for box in (b'moov', b'trak', b'mdia', b'minf', b'dinf'):
        at = whole.index(box) - 4
        size = struct.unpack('>I', whole[at : at + 4])[0] + len(alias(path)) - length
        out[at : at + 4] = struct.pack('>I', size)
    out[start:end] = bytes(end - start)
    return bytes(out)


def test_frames_in_another_file_stay_there(folder, tmp_path, monkeypatch):
    whole = (folder / 'a.mov').read_bytes()
    (tmp_path / 'other.bin').write_bytes(whole)
    path = tmp_path / 'a.mov'
    path.write_bytes(with_frames_elsewhere(whole, tmp_path / 'other.bin'))
    monkeypatch.setenv(OPTIONS, 'enable_drefs;1')
    if OPTIONS_WORK:
        assert cv2.VideoCapture(str(path), cv2.CAP_FFMPEG).read()[0], 'without the limits it opens'
    assert read(path) == (0, 'video a has no frame that can be read')


def test_name_is_no_address(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'subfile,,start,0,end,0,,:a.mp4').write_bytes((folder / 'a.mp4').read_bytes())
    assert read('subfile,,start,0,end,0,,:a.mp4')[0] == FRAMES


def test_large_video_is_refused_before_it_is_decoded(folder, monkeypatch):
    monkeypatch.setattr(videos.cv2, 'imdecode', None)
    limit = 96 * 64 / 1e6
    assert read(folder / 'a.mp4', max_megapixels=limit)[0] == FRAMES
    with pytest.raises(ValueError, match='video .*a.mp4 has 96 x 64 = 0.0 megapixels, the limit'):
        open_sources([str(folder / 'a.mp4')], 0.99 * limit)


class Frames:
    """A capture of these frames."""

    def __init__(self, *frames):
        self.frames = list(frames)

    def read(self):
        return (True, self.frames.pop(0)) if self.frames else (False, None)

    def release(self):
        pass


def test_frame_larger_than_announced_ends_a_video(monkeypatch):
    small, large = (np.zeros((side, side, 3), np.uint8) for side in (10, 11))
    monkeypatch.setattr(videos, '_opened_file', lambda _: Frames(small, large, small))
    source = sources.Source('v', video='v.mp4', max_megapixels=100e-6)
    first, last = source
    assert first.image is small and 'frame 1 of video v has 11 x 11' in last.fault


def test_camera_that_stops_is_named(monkeypatch):
    monkeypatch.setattr(cv2, 'VideoCapture', lambda _: Frames(np.zeros((2, 2, 3), np.uint8)))
    first, last = sources.Source('camera0', video=0)
    assert first.name == 'camera0#000000' and last.fault == 'camera 0 gave no more frames after 1'


def test_name_that_is_not_utf8_is_refused(folder, tmp_path):
    path = os.fsencode(tmp_path) + b'/caf\xe9.mp4'
    with open(path, 'wb') as file:
        file.write((folder / 'a.mp4').read_bytes())
    with pytest.raises(ValueError, match=r'caf\\udce9.mp4.* is not UTF-8: rename it'):
        open_sources([os.fsdecode(path)])


@pytest.mark.parametrize('content', [b'', b'\0' * 100, b'RIFF'])
def test_damaged_video_is_an_error(tmp_path, content):
    (tmp_path / 'v.mp4').write_bytes(content)
    with pytest.raises(ValueError, match='cannot be opened'):
        open_sources([str(tmp_path / 'v.mp4')])
    with opened_video(str(tmp_path / 'v.mp4')) as capture:
        assert not capture.isOpened()
