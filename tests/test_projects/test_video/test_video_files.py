"""Video lists, sampling of frames, decoding, transforms of clips and the Moving Shapes set."""

import json
import struct
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import cv2
import numpy as np
import pytest
from mmengine.registry import DATASETS

from mmlinattn.projects.video import CropClip, FlipClip, LoadClip, ResizeClip, VideoList, transforms
from mmlinattn.projects.video.moving_shapes import CLASSES, draw_clip, generate_videos
from mmlinattn.projects.video.pyav import Video, write_video

NEEDS_AV = dict(minversion='17', reason='reads videos: pip install the extra "video"')


@pytest.fixture
def film(tmp_path):
    """A video of 12 frames whose brightness counts them: film(frames) -> path."""
    pytest.importorskip('av', **NEEDS_AV)

    def make(frames=12, name='film.mp4'):
        levels = np.arange(frames, dtype=np.uint8)[:, None, None, None] * 16 + 20
        write_video(tmp_path / name, np.broadcast_to(levels, (frames, 24, 32, 3)).copy(), 6)
        return str(tmp_path / name)

    return make


def encoded(path, codec, rate, times, levels, gop_size=12, **options):
    """Write grey frames at some times, in units of 1 / rate; return the path."""
    av = pytest.importorskip('av', **NEEDS_AV)
    with av.open(str(path), 'w', options=options) as container:
        stream = container.add_stream(codec, rate)
        stream.height, stream.width, stream.codec_context.gop_size = 24, 32, gop_size
        for time, level in zip(times, levels):
            frame = av.VideoFrame.from_ndarray(np.full((24, 32, 3), level, np.uint8))
            frame.pts, frame.time_base = time, 1 / Fraction(rate)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return str(path)


LEVELS = range(20, 212, 16)  # of 12 frames


def counted(clip):
    """The numbers of the frames of a film."""
    return np.rint((clip.mean((1, 2, 3)) - 20) / 16).astype(int).tolist()


def test_decodes_the_frames_that_are_asked_for(film):
    video = Video(film())
    assert (video.num_frames, video.fps) == (12, 6.0)
    clip = video.read([9, 0, 4, 4])
    assert clip.shape == (4, 24, 32, 3) and counted(clip) == [9, 0, 4, 4]


@pytest.mark.parametrize(
    'name, first, movflags, expected',
    [
        ('fragments.mp4', 0, 'frag_keyframe', range(12)),
        ('trimmed.mp4', -5, 'faststart', range(5, 12)),  # an edit list hides the frames before 0
    ],
)
def test_counts_the_frames_that_are_shown(tmp_path, name, first, movflags, expected):
    times = range(first, first + 12)
    path = encoded(tmp_path / name, 'libx264', 6, times, LEVELS, 4, movflags=movflags)
    video = Video(path)
    assert video.num_frames == len(expected)
    assert counted(video.read(range(len(expected)))) == list(expected)


@pytest.mark.parametrize('name', ['film.avi', 'film.mkv', 'film.mp4', 'film.ts'])
def test_frames_at_irregular_times(tmp_path, name):
    """AVI fills the gaps with empty packets, which it counts; Matroska states the nominal rate."""
    times = [0, 1, 2, 5, 6, 9, 12, 13, 20, 23, 24, 25]
    video = Video(encoded(tmp_path / name, 'mpeg4', 10, times, LEVELS))
    assert video.num_frames == 12 and counted(video.read(range(12))) == [*range(12)]
    assert video.fps == pytest.approx(12 / 2.6, rel=0.1)


def test_rounded_times_keep_the_rate(tmp_path):
    path = encoded(tmp_path / 'a.mkv', 'mpeg4', Fraction(30000, 1001), range(4), [0] * 4)
    assert Video(path).fps == 30000 / 1001


# By 90, 180 and 270 degrees, and a matrix that is no rotation.
@pytest.mark.parametrize('a, b', [(0, 1), (-1, 0), (0, -1), (0, 0)])
def test_rotates_frames_as_opencv(tmp_path, a, b):
    pytest.importorskip('av', **NEEDS_AV)
    image = cv2.resize(
        np.uint8([[[250, 0, 90], [20, 200, 0]], [[0, 60, 250], [0, 0, 0]]]), (32, 24)
    )
    path = tmp_path / 'film.mp4'
    write_video(path, image[None], 6)
    upright, turned = (
        struct.pack('>5i', c << 16, d << 16, 0, -d << 16, c << 16) for c, d in ((1, 0), (a, b))
    )
    header, track, rest = path.read_bytes().partition(b'tkhd')
    path.write_bytes(header + track + rest.replace(upright, turned, 1))
    expected = cv2.cvtColor(cv2.VideoCapture(str(path)).read()[1], cv2.COLOR_BGR2RGB)
    assert expected.shape == ((32, 24, 3) if b else (24, 32, 3))
    found = Video(str(path)).read([0])[0]
    assert found.shape == expected.shape and np.abs(found - expected.astype(int)).max() <= 2


@pytest.mark.parametrize(
    'options, total, expected',
    [
        (dict(num_frames=4, interval=3), 12, [0, 3, 7, 11]),  # the span is 12 frames
        (dict(num_frames=4, interval=3), 20, [4, 7, 11, 15]),  # in the middle
        (dict(num_frames=4, interval=3), 6, [0, 3, 5, 5]),  # too short
        (dict(num_frames=3), 12, [2, 6, 10]),
        (dict(num_frames=4), 2, [0, 0, 1, 1]),
        (dict(num_frames=96, interval=4), 384, np.linspace(0, 383, 96).astype(int).tolist()),
    ],
)
def test_frames_in_the_middle(options, total, expected):
    assert LoadClip(place='middle', **options).frame_numbers(total).tolist() == expected


def test_frames_at_the_start():
    """One clip of TimeSformer's release: start_idx = delta * clip_idx / num_clips is 0."""
    load = LoadClip(num_frames=4, interval=3, place='start')
    assert load.frame_numbers(20).tolist() == [0, 3, 7, 11]
    assert LoadClip(num_frames=3, place='start').frame_numbers(12).tolist() == [0, 4, 8]


def test_interval_counts_frames_of_a_rate():
    load = LoadClip(num_frames=2, interval=10, fps=30, place='middle')
    assert load.frame_numbers(100, fps=15.0).tolist() == [45, 54]  # a span of 10 frames
    assert load.frame_numbers(100, fps=30.0).tolist() == [40, 59]


def test_random_frames_stay_in_place():
    np.random.seed(0)
    segments, clips = LoadClip(4), LoadClip(4, interval=5)
    found = np.stack([segments.frame_numbers(40) for _ in range(200)])
    assert (found // 10 == np.arange(4)).all() and len(set(found[:, 0])) == 10
    found = np.stack([clips.frame_numbers(40) for _ in range(200)])
    assert found.min() == 0 and found.max() == 38 and len(set(found[:, 0])) == 20


def test_short_videos_repeat_frames_and_say_so_once(film, monkeypatch):
    said = []
    monkeypatch.setattr(transforms, 'print_log', lambda text, *_: said.append(text))
    load, path = LoadClip(8, interval=4, place='middle'), film(5)
    for _ in range(2):
        out = load(dict(video_path=path))
    assert counted(out['img']) == out['frame_numbers'].tolist() == [0, 4, 4, 4, 4, 4, 4, 4]
    assert len(said) == 1 and f'a clip of 8 frames repeats frames of {path}, ' in said[0]


def damaged(path, content):
    with open(path, 'wb') as file:
        file.write(content)
    return path


def test_unreadable_videos_are_errors(film, tmp_path):
    path = film()
    content = Path(path).read_bytes()
    assert b'moov' in content
    for name, data, error in (
        ('empty.mp4', b'', 'the file is empty'),
        ('text.mp4', b'no video at all' * 50, 'the file is no video'),
        # The index is at the end.
        ('half.mp4', content[: len(content) // 2], 'the file is no video'),
    ):
        with pytest.raises(ValueError, match=error):
            Video(damaged(str(tmp_path / name), data))
    with pytest.raises(FileNotFoundError):
        Video(str(tmp_path / 'none.mp4'))
    whole = Path(film(name='film.avi')).read_bytes()
    cut = Video(damaged(str(tmp_path / 'cut.avi'), whole[:-600]))
    with pytest.raises(ValueError, match='of 12: the file is truncated|cannot be decoded'):
        cut.read(range(cut.num_frames))
    holes = damaged(str(tmp_path / 'holes.mp4'), content.replace(content[60:900], bytes(840)))
    with pytest.raises(ValueError, match='cannot be decoded|truncated|no video'):
        LoadClip(8, place='middle')(dict(video_path=holes))


@pytest.mark.parametrize('encoding', ['utf-8', 'utf-8-sig'])
def test_reads_lists_of_mmaction(tmp_path, encoding):
    (tmp_path / 'videos.txt').write_text('a/my video.mp4 3\n\nb.mp4 0\n', encoding)
    data = VideoList('videos.txt', dict(video='clips'), data_root=str(tmp_path))
    found = [data.get_data_info(i) for i in range(len(data))]
    assert [(f['video_path'], f['gt_label']) for f in found] == [
        (f'{tmp_path}/clips/a/my video.mp4', 3), (f'{tmp_path}/clips/b.mp4', 0)
    ]  # fmt: skip
    assert DATASETS.get('VideoList') is VideoList


def test_reads_folders_of_frames(tmp_path):
    folder = tmp_path / 'frames/film'
    folder.mkdir(parents=True)
    for i in range(1, 7):
        image = np.zeros((8, 8, 3), np.uint8)
        image[..., 2] = 40 * i  # red, as OpenCV stores it
        cv2.imwrite(str(folder / f'img_{i:05}.png'), image)
    (tmp_path / 'frames.txt').write_text('film 6 2\n')
    data = VideoList(
        'frames.txt', dict(video='frames'), data_root=str(tmp_path),
        frame_template='img_{:05}.png',
    )  # fmt: skip
    out = LoadClip(3, place='middle')(data.get_data_info(0))
    assert out['gt_label'] == 2
    assert out['img'][:, 0, 0].tolist() == [[80, 0, 0], [160, 0, 0], [240, 0, 0]]


@pytest.mark.parametrize(
    'text, error',
    [
        ('a.mp4\n', r"line 1 of .* is 'a.mp4', not FILE LABEL"),
        ('a.mp4 1\nb.mp4 -1\n', r"line 2 of .* is 'b.mp4 -1'"),
        ('a.mp4 cat\n', "'a.mp4 cat'"),
        ('\n', 'has no lines'),
        ('a.mp4 1\nb.mp4 2\n', 'line 2 of .* has the label 2, the labels of 2 classes'),
        ('\xe9.mp4 1\n', 'list.txt is not UTF-8 text: save it as UTF-8'),
    ],
)
def test_bad_lists_are_named(tmp_path, text, error):
    (tmp_path / 'list.txt').write_text(text, 'latin-1')
    with pytest.raises(ValueError, match=error):
        VideoList(str(tmp_path / 'list.txt'), metainfo=dict(classes=('cat', 'dog')))


def clip_of(frames=2, height=20, width=40):
    grid = np.arange(height * width, dtype=np.int64).reshape(1, height, width, 1)
    clip = np.broadcast_to(grid % 251, (frames, height, width, 3)).astype(np.uint8)
    return dict(img=clip)


def test_crops():
    clip = clip_of()['img']
    out = CropClip(20, 'three')(clip_of())['img']
    assert out.shape == (3, 3, 2, 20, 20)
    for i, x in enumerate((0, 10, 20)):
        assert np.array_equal(out[i].transpose(1, 2, 3, 0), clip[:, :, x : x + 20])
    out = CropClip(10, 'three')(clip_of(2, 16, 20))['img'].transpose(0, 2, 3, 4, 1)
    clip = clip_of(2, 16, 20)['img']
    assert np.array_equal(out, [clip[:, 3:13, x : x + 10] for x in (0, 5, 10)])
    out = CropClip(10, 'three')(clip_of(2, 20, 16))['img'].transpose(0, 2, 3, 4, 1)
    clip = clip_of(2, 20, 16)['img']
    assert np.array_equal(out, [clip[:, y : y + 10, 3:13] for y in (0, 5, 10)])
    clip = clip_of()['img']
    out = CropClip(10, 'center')(clip_of())['img']
    assert np.array_equal(out[0].transpose(1, 2, 3, 0), clip[:, 5:15, 15:25])
    np.random.seed(0)
    places = {int(CropClip(19)(clip_of())['img'][0, 0, 0, 0, 0]) for _ in range(200)}
    assert len(places) == 2 * 22


def test_resizing_and_flipping():
    out = ResizeClip(10)(clip_of())['img']
    assert out.shape == (2, 10, 20, 3)
    np.random.seed(0)
    for inverse, middle in ((False, 288.0), (True, 284.4)):  # means of both distributions
        resize = ResizeClip((256, 320), inverse)
        sides = [resize(clip_of(1, 2, 2))['img'].shape[1] for _ in range(300)]
        assert min(sides) >= 256 and max(sides) <= 320
        assert np.mean(sides) == pytest.approx(middle, abs=3)
    assert np.array_equal(FlipClip(1.0)(clip_of())['img'], clip_of()['img'][:, :, ::-1])
    assert np.array_equal(FlipClip(0.0)(clip_of())['img'], clip_of()['img'])


@pytest.mark.parametrize(
    'make, error',
    [
        (lambda: LoadClip(0), 'num_frames must be a positive integer, got 0'),
        (lambda: LoadClip(8, interval=1.5), 'interval must be .* got 1.5'),
        (lambda: LoadClip(8, fps=30), 'needs an interval'),
        (lambda: LoadClip(8, place='end'), "place must be one of .* got 'end'"),
        (lambda: ResizeClip((320, 256)), r'got \(320, 256\)'),
        (lambda: ResizeClip(32.0), 'short_side must be a positive integer, got 32.0'),
        (lambda: ResizeClip((10, 20.5)), 'short_side must be a positive integer, got 20.5'),
        (lambda: LoadClip(8, 4, fps='30fps'), "fps must be a finite number above 0, got '30fps'"),
        (lambda: LoadClip(8, 4, fps=0), 'fps must be a finite number above 0, got 0'),
        (lambda: FlipClip(1.0)(CropClip(8)(clip_of())), 'FlipClip needs .* stand before CropClip'),
        (lambda: ResizeClip(9)(CropClip(8)(clip_of())), 'ResizeClip needs .* before CropClip'),
        (lambda: VideoList('a.txt', data_prefix='videos'), r"dict\(video='FOLDER'\), got 'videos'"),
        (lambda: VideoList('a.txt', data_prefix=dict(img='raw')), "got {'img': 'raw'}"),
        (lambda: CropClip(8, 'five'), "got 'five'"),
        (lambda: FlipClip(2), 'got 2'),
        (lambda: CropClip(21)(clip_of()), r'\(20, 40\), smaller than the crop of 21'),
        (lambda: LoadClip(8).frame_numbers(0), 'no frames'),
        (lambda: LoadClip(8, 2, fps=30).frame_numbers(9), 'fps=30 needs the frame rate'),
    ],
)  # fmt: skip
def test_bad_options_are_named(make, error):
    with pytest.raises(ValueError, match=error):
        make()


def places(clip):
    """Where the shape is in each frame, (T, 2), by its light."""
    light = clip.astype(float).sum(-1)
    light = np.clip(light - np.median(light, (1, 2), keepdims=True) - 150, 0, None)
    y, x = np.mgrid[: clip.shape[1], : clip.shape[2]]
    weight = light.sum((1, 2))
    return np.stack([(light * y).sum((1, 2)) / weight, (light * x).sum((1, 2)) / weight], 1)


def test_classes_differ_by_order_alone():
    for seed in range(5):
        clips = [draw_clip(np.random.default_rng(seed), label, 48, 16) for label in range(4)]
        found = [places(clip) for clip in clips]
        order = np.array([0, 1, 6, 7, 4, 5, 2, 3])  # two frames at each place
        for turns, (first, second) in zip(found, ((0, 0), (1, 1), (0, 1), (1, 0))):
            for half, reverse in ((turns[:8], first), (turns[8:], second)):
                expected = found[0][:8][order] if reverse else found[0][:8]
                assert np.abs(half - expected).max() < 0.5
        # Clockwise: from the top to the right.
        assert found[0][2, 1] > found[0][0, 1] and found[1][2, 1] < found[1][0, 1]


def test_moving_shapes_are_written_once(tmp_path, root, capfd):
    pytest.importorskip('av', **NEEDS_AV)

    def run(*arguments):
        command = [sys.executable, '-m', 'mmlinattn.projects.video.moving_shapes']
        return subprocess.run([*command, *map(str, arguments)], cwd=root).returncode

    folder = tmp_path / 'moving'
    options = ['--num-train', '4', '--num-val', '4', '--num-frames', '8']
    assert run(folder, *options) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ['moving']
    video = Video(f'{folder}/videos/val/00003.mp4')
    clip = draw_clip(np.random.default_rng([0, 1, 3]), 3, 32, 8)
    assert np.abs(video.read(range(8)).astype(int) - clip).mean() < 6
    data = VideoList('val.txt', dict(video='videos'), data_root=str(folder))
    assert [data.get_data_info(i)['gt_label'] for i in range(4)] == [0, 1, 2, 3]
    assert json.loads((folder / 'moving_shapes.json').read_text())['classes'] == list(CLASSES)
    assert run(folder, *options) == 0 and 'up to date' in capfd.readouterr().out
    assert run(folder, *options, '--seed', '1') == 2
    assert 'other parameters' in capfd.readouterr().err
    with pytest.raises(FileExistsError, match='is not a Moving Shapes set'):
        generate_videos(tmp_path)
    for bad, error in (
        ('--size', 'size must be an integer of at least 32'),
        ('--num-frames', 'num_frames'),
    ):
        assert run(tmp_path / 'x', bad, '7') == 2
        assert error in capfd.readouterr().err
