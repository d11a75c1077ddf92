"""Prediction when items fail, when it is ended, and when it takes long; a cheap model stands in."""

import json
import os
import resource
import shutil
import signal
import sys
import weakref

import cv2
import numpy as np
import pytest
import torch
from mmengine.structures import BaseDataElement, PixelData

from mmlinattn import __main__ as program
from mmlinattn.apis import Frame, Prediction, Source, coco_categories, lines_to_coco
from mmlinattn.cli import predict
from tests.programs import Program

IMAGE = np.zeros((16, 24, 3), np.uint8)


class CheapPredictor:
    """Stands in for a model: all pixels are of the first class.

    Attributes:
        calls: number of images that it got.
        samples: weak references to what it returned.
    """

    task, notes, packed_unsupported_reason = 'segmentation', (), None
    categories = coco_categories('xy', [(0, 0, 0), (9, 9, 9)])

    def __init__(self, *_):
        self.calls = 0
        self.samples = []

    def on_image(self):
        """Called for each image."""

    def predict(self, image, name, min_score):
        self.calls += 1
        self.on_image()
        labels = torch.zeros(1, *image.shape[:2], dtype=torch.int64)
        sample = BaseDataElement(pred_sem_seg=PixelData(data=labels))
        self.samples.append(weakref.ref(sample))
        return Prediction(sample, 0.001, image, name, self.categories, min_score)


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """run(sources, *options, on_image=..., out=...) -> exit code and what it printed."""
    monkeypatch.setenv('COLUMNS', '80')

    def call(sources, *options, on_image=CheapPredictor.on_image, out=tmp_path / 'out'):
        monkeypatch.setattr(CheapPredictor, 'on_image', on_image)
        monkeypatch.setattr(predict, 'load', CheapPredictor)
        monkeypatch.setattr(sys, 'argv', ['mmlinattn'])
        given = ['predict', 'c.py', 'c.pth', *map(str, sources), '--out', str(out), *options]
        try:
            code = program.main(given)
        except SystemExit as error:
            code = error.code
        said = capsys.readouterr()
        return code, said.out + said.err

    return call


@pytest.fixture
def images(tmp_path):
    folder = tmp_path / 'in'
    folder.mkdir()
    for i in range(4):
        cv2.imwrite(str(folder / f'{i}.png'), IMAGE)
    return folder


def video(path, frames=30, size=(24, 16)):
    form = (cv2.CAP_FFMPEG, cv2.VideoWriter_fourcc(*'MJPG'), 10, size)
    writer = cv2.VideoWriter(str(path), *form)
    draw = np.random.default_rng(0)
    for _ in range(frames):
        writer.write(draw.integers(0, 255, (size[1], size[0], 3), np.uint8))
    writer.release()
    return path


def names(path):
    return [image['file_name'] for image in json.loads(path.read_text())['images']]


@pytest.mark.parametrize('error', [MemoryError(), RuntimeError("can't allocate memory")])
def test_image_that_fails_is_named_and_the_others_are_predicted(run, images, tmp_path, error):
    def fail(predictor):
        if predictor.calls == 2:
            raise error

    code, said = run([images], on_image=fail)
    assert code == 1 and f'image 1.png: {type(error).__name__}: ' in said
    assert '1 image(s) or video(s) failed' in said
    assert names(tmp_path / 'out' / 'predictions.json') == ['0.png', '2.png', '3.png']
    assert not (tmp_path / 'out' / 'vis' / '1.png').exists()


def test_names_that_do_not_fit(run, images, tmp_path):
    long = ['n' * 250 + suffix for suffix in ('.bmp', '.png')]  # too long with '.png' behind
    for name in long:
        shutil.copy(images / '0.png', images / name)
    shutil.copy(images / '0.png', os.fsencode(images) + b'/caf\xe9.png')
    with open(os.fsencode(images) + b'/\xe9.jpg', 'wb') as file:
        file.write(b'no image')
    code, said = run([images])
    assert code == 1 and '3 image(s)' in said
    assert '/\\udce9.jpg cannot be read: damaged, or no image' in said
    assert (
        f'image {long[1]}: WriteError: ' in said and '.png cannot be written: File name too' in said
    )
    found = names(tmp_path / 'out' / 'predictions.json')
    assert found == ['0.png', '1.png', '2.png', '3.png', 'caf\\udce9.png', *long]
    assert os.path.exists(os.fsencode(tmp_path) + b'/out/vis/caf\xe9.png')


def test_limit_of_pixels_is_an_option(run, images, tmp_path):
    cv2.imwrite(str(images / '0.png'), np.zeros((40, 50, 3), np.uint8))
    code, said = run([images], '--max-megapixels', '0.001999')
    assert code == 1 and '0.png has 50 x 40 = 0.0 megapixels' in said
    assert names(tmp_path / 'out' / 'predictions.json') == ['1.png', '2.png', '3.png']
    assert run([images], '--max-megapixels', '0.002')[0] == 0
    assert run([images], '--max-megapixels', '0')[0] == 2


def test_video_that_is_cut_off_is_named(run, tmp_path):
    path = video(tmp_path / 'v.avi')
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    code, said = run([path])
    found = names(tmp_path / 'out' / 'predictions.json')
    assert code == 1 and 5 < len(found) < 20
    assert f'video v is cut off after {path.stat().st_size} of' in said
    assert f'only {len(found)} frames can be read' in said
    asked = run([path], '--max-frames', '5')
    assert asked[0] == 0 and 'cut off' not in asked[1]


def test_no_sample_is_kept(run, tmp_path):
    def look(predictor):
        alive = sum(sample() is not None for sample in predictor.samples)
        assert alive <= 1, f'{alive} samples of {predictor.calls} frames are in memory'

    code, said = run([video(tmp_path / 'v.avi')], on_image=look)
    assert code == 0, said
    assert len(names(tmp_path / 'out' / 'predictions.json')) == 30


def test_folder_that_is_deleted_ends_the_run(run, images, tmp_path):
    def delete(predictor):
        if predictor.calls == 3:
            shutil.rmtree(tmp_path / 'out')

    code, said = run([images], on_image=delete)
    assert code == 2 and 'predictions.jsonl cannot be written: it was deleted' in said
    assert 'ended early' not in said
    assert not (tmp_path / 'out').exists()


def test_disk_that_is_full(run, tmp_path):
    """Pictures are named and the predictions go on, until these cannot be written either."""
    draw = np.random.default_rng(0)
    folder = tmp_path / 'in'
    folder.mkdir()
    for i in range(40):
        cv2.imwrite(str(folder / f'{i:02d}.png'), draw.integers(0, 255, (60, 60, 3), np.uint8))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, limits[1]))
    try:
        code, said = run([folder])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert code == 2 and 'image 00.png: WriteError: ' in said
    out = tmp_path / 'out'
    names_there = ['labels', 'legend.json', 'predictions.jsonl', 'vis']
    assert sorted(path.name for path in out.iterdir()) == names_there
    assert not list((out / 'vis').iterdir())
    lines_to_coco(out / 'predictions.jsonl', tmp_path / 'coco.json')
    kept = names(tmp_path / 'coco.json')
    assert 10 < len(kept) < 40 and kept == [f'{i:02d}.png' for i in range(len(kept))]
    assert (
        f'predictions.jsonl cannot be written: File too large (it got {len(kept)} images)' in said
    )


def test_drawn_video_without_all_frames_is_named(run, tmp_path):
    path = video(tmp_path / 'v.avi', frames=3)
    (tmp_path / 'out' / 'vis' / 'v.mp4').mkdir(parents=True)  # OpenCV says nothing
    code, said = run([path])
    assert code == 1 and f'{tmp_path / "out" / "vis" / "v.mp4"} has 0 of 3 frames' in said
    assert len(names(tmp_path / 'out' / 'predictions.json')) == 3


@pytest.mark.parametrize('width, code', [(2, 1), (6, 1), (8, 0)])
def test_narrow_video_is_not_drawn(run, tmp_path, monkeypatch, width, code):
    frames = [Frame(f'v#{i:06d}', np.zeros((1000, width, 3), np.uint8)) for i in range(3)]
    monkeypatch.setattr(Source, '__iter__', lambda _: iter(frames))
    monkeypatch.setattr(Source, 'frame_rate', 25.0)
    sources = [Source('v', video=0)]
    monkeypatch.setattr(predict, 'open_sources', lambda *_: sources)
    found, said = run(['0'])
    assert found == code and ('v.mp4 has 0 of 3 frames' in said) == bool(code)
    assert len(names(tmp_path / 'out' / 'predictions.json')) == 3


@pytest.mark.parametrize(
    'options, more, code',
    [([], False, 0), (['--max-frames', '9'], False, 130), ([], True, 130)],
)
def test_camera_is_stopped_by_ctrl_c(run, images, tmp_path, monkeypatch, options, more, code):
    class Camera(Source):
        def __iter__(self):
            for i in range(3):
                yield Frame(f'camera0#{i:06d}', IMAGE)
            raise KeyboardInterrupt

    monkeypatch.setattr(Source, 'frame_rate', 25.0)
    sources = [Camera('camera0', video=0), *predict.open_sources([str(images)])[: int(more)]]
    monkeypatch.setattr(predict, 'open_sources', lambda *_: sources)
    found, said = run(['0'], *options)
    assert found == code
    complete = (tmp_path / 'out' / 'predictions.json').exists()
    assert complete == (code == 0) and ('ended early: 3 images' in said) == (code != 0)
    assert (tmp_path / 'out' / 'predictions.jsonl').exists() != complete


def test_names_that_look_like_markup(run, images, tmp_path):
    (images / '[').mkdir()
    (images / '[' / 'up]:cat:.jpg').write_bytes(b'no image')
    code, said = run([images], out=tmp_path / 'x[/up]:cat:')
    assert code == 1 and 'x[/up]:cat:/predictions.json' in said
    assert '[/up]:cat:.jpg cannot be read' in said
    assert 'MarkupError' not in said and '\n4 images' in said


def test_out_that_is_not_utf8_is_refused(run, images, tmp_path):
    code, said = run([images], out=tmp_path / 'caf\udce9')
    assert code == 2 and '--out must be a name in UTF-8' in said


SLOW = """
import signal, sys, time
sys.path.insert(0, {root!r})
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start jobs without it
from mmlinattn.__main__ import main
from mmlinattn.cli import predict
from tests.test_cli.test_predict_faults import CheapPredictor
predict.load = CheapPredictor
CheapPredictor.on_image = lambda self: time.sleep(0.05)
sys.exit(main(['predict', *sys.argv[1:]]))
"""


@pytest.mark.parametrize(
    'number, code', [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_what_was_predicted_is_on_disk(root, tmp_path, number, code):
    source, out = video(tmp_path / 'v.avi', frames=2000), tmp_path / 'out'
    out.mkdir()
    (out / 'predictions.json').write_text('of an earlier run')
    script = tmp_path / 'slow.py'
    script.write_text(SLOW.format(root=str(root)))
    given = ['c.py', 'c.pth', str(source), '--out', str(out)]
    process = Program(script, given, tmp_path / 'log', [root])
    lines = out / 'predictions.jsonl'
    while process.process.is_alive() and (
        not lines.exists() or lines.read_bytes().count(b'\n') < 6
    ):
        process.process.join(0.05)
    os.kill(process.process.pid, number)
    assert process.end() == code, process.text()
    assert sorted(path.name for path in out.iterdir()) == [
        'legend.json',
        'predictions.jsonl',
        'vis',
    ]
    lines_to_coco(lines, tmp_path / 'coco.json')
    kept = names(tmp_path / 'coco.json')
    assert kept == [f'v#{i:06d}' for i in range(len(kept))] and 5 <= len(kept) < 1000
    if number != signal.SIGKILL:
        assert f'ended early: {len(kept)} images are in {lines}' in process.text()
        drawn = cv2.VideoCapture(str(out / 'vis' / 'v.mp4')).get(cv2.CAP_PROP_FRAME_COUNT)
        assert len(kept) - 1 <= drawn <= len(kept)


def test_a_run_that_ended_early_is_continued(run, images, tmp_path):
    """Images and videos that are done are not predicted again."""
    clips = [video(tmp_path / f'{name}.avi', frames=5) for name in 'vw']
    out, seen, given = tmp_path / 'out', [], [images, *clips]

    def stop(predictor):
        if predictor.calls == 12:  # the third frame of the second video
            raise KeyboardInterrupt

    code, said = run(given, on_image=stop)
    assert code == 130 and 'ended early: 11 images are in' in said
    assert 'the same command with --resume continues' in said
    before = (out / 'predictions.jsonl').read_bytes(), (out / 'legend.json').read_bytes()
    for options, message in (
        ((), 'unless a command is running there, --resume continues; remove it to begin anew'),
        (('--resume', '--tta'), 'is of a run with tta=False, not True'),
        (('--resume', '--no-pictures'), 'is of a run with no_pictures=False, not True'),
    ):
        code, said = run(given, *options)
        assert code == 2 and message in said
    code, said = run([images], '--resume')
    assert code == 2 and 'is of a run with sources=[' in said
    assert before == ((out / 'predictions.jsonl').read_bytes(), (out / 'legend.json').read_bytes())
    written = (out / 'vis' / 'v.mp4').stat().st_mtime_ns
    os.remove(images / '0.png')  # done: nothing reads it again
    code, said = run(given, '--resume', on_image=lambda one: seen.append(one.calls))
    assert code == 0 and '11 images are predicted already' in said and '\n14 images' in said
    assert 'w: a video is drawn from its start, 2 frames again' in said and len(seen) == 5
    frames = [f'{name}#{i:06d}' for name in 'vw' for i in range(5)]
    assert names(out / 'predictions.json') == [*(f'{i}.png' for i in range(4)), *frames]
    assert (out / 'vis' / 'v.mp4').stat().st_mtime_ns == written
    assert cv2.VideoCapture(str(out / 'vis' / 'w.mp4')).get(cv2.CAP_PROP_FRAME_COUNT) == 5
    code, said = run(given, '--resume')
    assert code == 2 and 'predictions.json is of a run that has ended, nothing to --resume' in said


def test_a_picture_that_failed_is_drawn_by_the_continued_run(run, images, tmp_path, monkeypatch):
    def stop(predictor):
        if predictor.calls == 3:
            raise KeyboardInterrupt

    (tmp_path / 'out' / 'vis' / '0.png').mkdir(parents=True)  # in the way
    assert run([images], on_image=stop)[0] == 130
    (tmp_path / 'out' / 'vis' / '0.png').rmdir()
    code, said = run([images], '--resume')
    assert code == 0 and '1 images are predicted already' in said
    assert (tmp_path / 'out' / 'vis' / '0.png').is_file()
    found = names(tmp_path / 'out' / 'predictions.json')
    assert sorted(found) == [f'{i}.png' for i in range(4)]


def test_pictures_in_the_source_are_not_predicted(run, images):
    for _ in range(2):
        code, said = run([images], out=images / 'out')
        assert code == 0, said
    assert names(images / 'out' / 'predictions.json') == [f'{i}.png' for i in range(4)]


def test_a_camera_is_not_resumed(run, tmp_path, monkeypatch):
    monkeypatch.setattr(predict, 'open_sources', lambda *_: [Source('camera0', video=0)])
    code, said = run(['0'], '--resume')
    assert code == 2 and '--resume is for images and videos' in said
    assert not list(tmp_path.glob('out/*'))
    (tmp_path / 'out' / 'predictions.jsonl').touch()  # of a camera that was killed
    code, said = run(['0'])
    assert code == 2 and 'earlier run: remove it to begin anew' in said


def test_frames_that_are_done_need_no_model_without_pictures(run, tmp_path):
    clip = video(tmp_path / 'v.avi', frames=5)

    def stop(predictor):
        if predictor.calls == 4:
            raise KeyboardInterrupt

    assert run([clip], '--no-pictures', on_image=stop)[0] == 130
    seen = []
    given = '--no-pictures', '--resume'
    assert run([clip], *given, on_image=lambda _: seen.append(1))[0] == 0
    assert len(seen) == 2
    assert names(tmp_path / 'out' / 'predictions.json') == [f'v#{i:06d}' for i in range(5)]
