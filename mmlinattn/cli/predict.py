"""Predict images, folders, videos or a camera with a model of a config."""

import argparse
import json
import os
import signal
import statistics
import sys
from collections import deque
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Deque, Dict, Optional, Sequence

import cv2
from rich.console import Console
from rich.progress import Progress

from ..apis import Frame, FrameError, Prediction, Predictor, ResultsFile, Source, load, open_sources
from ..apis.prediction import write_file
from ..apis.results import check_continues
from ..apis.sources import output_names
from ..apis.videos import frame_count
from ..utils import check_writable
from ..utils.command_line import error_text, errors_in_one_line, plain_console, progress_bars
from ..utils.suggest import shorten

LEAST_WIDTH = 8  # OpenCV overruns its buffer when it writes narrower videos


class Pictures:
    """Writer of drawn predictions: one picture per image, or one video per source.

    Args:
        folder: folder of the pictures.
        source: source of the frames.
        names: see :func:`mmlinattn.apis.sources.output_names`.
    """

    def __init__(self, folder: Path, source: Source, names: Dict[str, str]) -> None:
        self.folder, self.source, self.names = folder, source, names
        self.video, self.frames = cv2.VideoWriter(), 0
        self.video_path = folder / f'{source.name}.mp4'

    def add(self, prediction: Prediction) -> None:
        """Write the picture of a prediction.

        Raises:
            OSError: the picture cannot be written. For a video see :meth:`check`.
        """
        if self.source.video is None:
            prediction.save(self.folder / f'{self.names[prediction.name]}.png')
            return
        self.frames += 1
        drawn = prediction.plot()
        if self.frames == 1:
            self._open(*drawn.shape[:2])
        self.video.write(drawn)

    def _open(self, height: int, width: int) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.video_path.unlink(missing_ok=True)
        if width >= LEAST_WIDTH:
            form = (cv2.VideoWriter.fourcc(*'mp4v'), self.source.frame_rate, (width, height))
            self.video.open(str(self.video_path), cv2.CAP_FFMPEG, *form)

    def close(self) -> None:
        self.video.release()

    def check(self) -> None:
        """Raise OSError unless the video has all its frames; OpenCV does not report errors."""
        found = frame_count(str(self.video_path)) if self.frames else 0
        if found != self.frames:
            raise OSError(
                f'{self.video_path} has {found} of {self.frames} frames: the disk is full, or '
                'OpenCV cannot write frames of this size'
            )


def legend(categories: Sequence[dict]) -> str:
    """Return the JSON text that says which class each pixel value of an indexed PNG is.

    Example:
        >>> print(legend([dict(id=7, name='sky', color=[0, 0, 255])]))
        [
        {"index": 0, "name": "sky", "color": [0, 0, 255], "category_id": 7}
        ]
    """
    entries = [
        dict(index=i, name=one['name'], color=one['color'], category_id=one['id'])
        for i, one in enumerate(categories)
    ]
    return '[\n' + ',\n'.join(map(json.dumps, entries)) + '\n]'


class Run:
    """Prediction run that writes the result of each image before it reads the next.

    Attributes:
        faults: number of images and videos that failed.
        seconds: times of the last images only, because a camera never ends.
    """

    def __init__(
        self, args: argparse.Namespace, predictor: Predictor, results: ResultsFile, bars: Progress
    ) -> None:
        self.args, self.predictor, self.results, self.bars = args, predictor, results, bars
        self.faults = 0
        self.one_by_one = False
        self.seconds: Deque[float] = deque(maxlen=1000)

    def predict_all(self, sources: Sequence[Source]) -> None:
        """Predict all sources; Ctrl-C stops a camera without an error if it is the last source."""
        names = output_names(sources)
        for source in sources:
            try:
                self._predict_source(source, Pictures(self.args.out / 'vis', source, names))
            except KeyboardInterrupt:
                endless = isinstance(source.video, int) and self.args.max_frames is None
                if not (endless and source is sources[-1]):
                    raise

    def _predict_source(self, source: Source, pictures: Pictures) -> None:
        limit = None if source.video is None else self.args.max_frames
        total = len(source)
        total = min(total, limit or total)
        if source.video is None:
            rest = [path for path in source.paths if source.name_of(path) not in self.results]
            source, total = replace(source, paths=rest), len(rest)
        elif total and self._is_done(source, pictures, total):
            return
        elif done := self.results.num_frames(source.name):
            text = f'{source.name}: a video is drawn from its start, {done} frames again'
            self.bars.console.print(text, highlight=False, soft_wrap=True)
        # A bar without a total moves: the length of a camera, and of some videos, is unknown.
        bar = self.bars.add_task(
            source.name, total=total if source.video is None else total or None
        )
        try:
            frames = islice(source, limit)
            # A camera shows each frame at once.
            size = self.args.batch_size if source.video is None else 1
            while group := list(islice(frames, size)):
                self._predict_frames(group, pictures)
                self.bars.advance(bar, len(group))
        finally:
            pictures.close()
        try:
            pictures.check()
        except OSError as error:
            self._fail(str(error))

    def _is_done(self, source: Source, pictures: Pictures, total: int) -> bool:
        """Return True if an interrupted run has predicted and drawn all frames of a video."""
        drawn = self.args.no_pictures or frame_count(str(pictures.video_path)) == total
        return drawn and self.results.num_frames(source.name) == total

    def _predict_frames(self, frames: Sequence[Frame], pictures: Pictures) -> None:
        there = [frame for frame in frames if frame.image is not None]
        found: Dict[str, Prediction] = {}
        if len(there) > 1:
            images, names = [frame.read() for frame in there], [frame.name for frame in there]
            try:
                predictions = self.predictor.predict_batch(images, names, self.args.min_score)
                found = dict(zip(names, predictions))
            except Exception as error:  # one by one it is clear which image fails
                self._say_one_by_one(error)
        for frame in frames:
            self._predict_frame(frame, found.get(frame.name), pictures)

    def _predict_frame(
        self, frame: Frame, prediction: Optional[Prediction], pictures: Pictures
    ) -> None:
        is_done = frame.name in self.results
        if is_done and self.args.no_pictures:
            return
        try:
            image = frame.read()
            if prediction is None:
                prediction = self.predictor.predict(image, frame.name, self.args.min_score)
        except FrameError as error:
            self._fail(str(error))
            return
        except Exception as error:  # for example out of memory
            self._fail_on(frame, error)
            return
        self.seconds.append(prediction.seconds)
        self.results.check()  # pictures would make a deleted folder again
        is_complete = True
        try:
            if frame.name in pictures.names and prediction.segmentation is not None:
                prediction.save_labels(
                    self.args.out / 'labels' / f'{pictures.names[frame.name]}.png'
                )
            if not self.args.no_pictures:
                pictures.add(prediction)
        except Exception as error:  # for example a name that is too long
            is_complete = False
            self._fail_on(frame, error)
        if not is_done:
            self.results.add(frame.name, image.shape[:2], prediction.sample, is_complete)

    def _fail_on(self, frame: Frame, error: Exception) -> None:
        self._fail(f'image {frame.name}: {type(error).__name__}: {error_text(error)}')

    def _say_one_by_one(self, error: Exception) -> None:
        """Print once why images of a batch are predicted again, one by one."""
        if not self.one_by_one:
            self.one_by_one = True
            text = f'{type(error).__name__}: {error_text(error)}'
            self.bars.console.print(
                f'a batch failed, its images are predicted one by one: {text}', soft_wrap=True
            )

    def _fail(self, text: str) -> None:
        self.faults += 1
        self.bars.console.print(text, style='red', soft_wrap=True)


def settings_of(args: argparse.Namespace) -> dict:
    """Return the options that a continued run must share."""
    names = ('config', 'checkpoint', 'tta', 'min_score', 'no_pictures', 'max_frames')
    found = {name: getattr(args, name) for name in (*names, 'max_megapixels')}
    sources = [os.path.abspath(source) for source in args.sources]
    return dict(found, sources=sources, cfg_options=repr(args.cfg_options))


def check_start(args: argparse.Namespace, path: Path, sources: Sequence[Source]) -> None:
    """Check, before the model is loaded, that no results of another run are lost or mixed in.

    Raises:
        FileExistsError: there are lines of an interrupted run and no --resume, or a complete run
            and --resume.
        ValueError: --resume with a camera, or with the lines of another run.
    """
    lines = path.with_suffix('.jsonl')
    other = 'remove it to begin anew, or name another --out'
    with_camera = any(isinstance(source.video, int) for source in sources)
    if not args.resume:
        if lines.exists():
            cure = '' if with_camera else 'unless a command is running there, --resume continues; '
            raise FileExistsError(f'{lines} has the predictions of an earlier run: {cure}{other}')
        return
    if with_camera:
        raise ValueError('--resume is for images and videos; a camera shows other frames now')
    if not check_continues(lines, settings=settings_of(args)) and path.exists():
        raise FileExistsError(f'{path} is of a run that has ended, nothing to --resume: {other}')


def without_outputs(source: Source, out: Path) -> Source:
    """Return the source without the pictures that the command writes into it."""
    if source.root is None or not out.resolve().is_relative_to(source.root.resolve()):
        return source
    written = {Path(os.path.abspath(out / name)) for name in ('vis', 'labels')}
    rest = [
        path for path in source.paths if written.isdisjoint(Path(os.path.abspath(path)).parents)
    ]
    return replace(source, paths=rest)


def run(args: argparse.Namespace, console: Console) -> int:
    """Predict all sources and return the number of images and videos that failed."""
    sources = open_sources(args.sources, args.max_megapixels)
    sources = [without_outputs(source, args.out) for source in sources]
    path = args.out / 'predictions.json'
    check_writable(path)
    check_start(args, path, sources)
    predictor = load(args.config, args.checkpoint, args.device, args.tta, args.cfg_options)
    reason, notes = predictor.packed_unsupported_reason, [*predictor.notes]
    if args.batch_size > 1 and reason:
        notes.append(f'images are predicted one by one: {reason}')
    for source in sources:
        if source.passed_over:
            listed = [f'{count} x {name}' for name, count in source.passed_over.items()]
            notes.append(f'files of {source.name} that are no images: {shorten(listed)}')
    for note in notes:
        console.print(note, highlight=False, soft_wrap=True)
    settings = settings_of(args)
    with ResultsFile(path, predictor.categories, args.min_score, settings, args.resume) as results:
        if predictor.task == 'segmentation':
            write_file(args.out / 'legend.json', legend(predictor.categories).encode())
        if results.count:
            text = f'{results.count} images are predicted already'
            console.print(text, highlight=False, soft_wrap=True)
        try:
            with progress_bars(console) as bars:
                job = Run(args, predictor, results, bars)
                job.predict_all(sources)
            results.finish()
        except BaseException:
            if results.exists:
                text = f'ended early: {results.count} images are in {results.lines}'
                if not any(isinstance(source.video, int) for source in sources):
                    text += '; the same command with --resume continues'
                print(text, file=sys.stderr)
            raise
    if job.seconds:
        milliseconds = 1e3 * statistics.median(job.seconds)
        text = f'{results.count} images, {milliseconds:.0f} ms an image (median): {path}'
        console.print(text, highlight=False, soft_wrap=True)
    return job.faults


def main(args: argparse.Namespace) -> int:
    try:
        with errors_in_one_line(args.debug):
            faults = run(args, plain_console())
    except KeyboardInterrupt:
        print('error: interrupted', file=sys.stderr)
        return 128 + signal.SIGINT
    if faults:
        print(f'error: {faults} image(s) or video(s) failed, named above', file=sys.stderr)
    return 1 if faults else 0
