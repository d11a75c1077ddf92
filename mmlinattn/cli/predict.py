"""Predict images, folders, videos or a camera with a detector, segmentor or classifier.

Writes one picture per image, one video per video, and all predictions in the COCO format. An image
that cannot be read or predicted is reported and skipped; the exit code is then 1.
"""

import argparse
import signal
import statistics
import sys
from collections import deque
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Deque, List, Optional, Sequence

import cv2
import numpy as np
from rich.console import Console
from rich.progress import Progress

from ..apis import Frame, FrameError, Predictor, ResultsFile, Source, open_sources
from ..apis.videos import frame_count
from ..datasets.audit.images import MAX_MEGAPIXELS
from ..engine.config import load_config
from ..utils import NotWritten, check_writable
from ..utils.command_line import (
    Parser,
    error_text,
    errors_in_one_line,
    plain_console,
    progress_bars,
)

LEAST_WIDTH = 8  # OpenCV overruns its buffer when it writes narrower videos


def parse_args(argv: Optional[List[str]] = None) -> argparse.Namespace:
    parser = Parser(cfg_options=True, description=__doc__)
    add = parser.add_argument
    add('config', help='config file, or the name of one of this package')
    add('checkpoint', help='checkpoint: a file or an address')
    add('sources', nargs='+', metavar='SOURCE', help='image, folder, video, or number of a camera')
    add('--out', type=Path, default=Path('work_dirs/predictions'), metavar='DIR')
    add('--min-score', type=float, default=0.3, help='objects that are less sure are left out')
    add('--no-pictures', action='store_true', help='predictions.json alone')
    add('--max-frames', type=int, metavar='N', help='of each video or camera')
    add('--max-megapixels', type=float, default=MAX_MEGAPIXELS, metavar='N',
        help='images and videos with more are not decoded (default: %(default)g)')  # fmt: skip
    add('--device', default='cpu', help='cpu, cuda, cuda:1, ...')
    args = parser.parse_args(argv)
    if not 0 <= args.min_score <= 1:
        parser.error(f'--min-score must be 0 to 1, got {args.min_score}')
    for name in ('max_frames', 'max_megapixels'):
        value = getattr(args, name)
        if value is not None and not value > 0:
            parser.error(f'--{name.replace("_", "-")} must be positive, got {value}')
    try:
        str(args.out).encode()
    except UnicodeEncodeError:  # OpenCV crashes when it writes a video there
        parser.error(f'--out must be a name in UTF-8, got {str(args.out)!r}')
    return args


class Pictures:
    """Writer of drawn predictions: one picture per image, or one video per source."""

    def __init__(self, folder: Path, source: Source) -> None:
        self.folder, self.source = folder, source
        self.video, self.frames = cv2.VideoWriter(), 0
        self.video_path = folder / f'{source.name}.mp4'

    def add(self, frame: Frame, drawn: np.ndarray) -> None:
        """Write a frame.

        Raises:
            OSError: the picture cannot be written. For a video see :meth:`check`.
        """
        if self.source.video is None:
            # Appended to the full name, because a.png and a.jpg may be in the same folder.
            write_picture(self.folder / f'{frame.name}.png', drawn)
            return
        self.frames += 1
        if self.frames == 1:
            self._open(*drawn.shape[:2])
        self.video.write(drawn)

    def _open(self, height: int, width: int) -> None:
        self.video_path.unlink(missing_ok=True)
        if width >= LEAST_WIDTH:
            form = (cv2.VideoWriter_fourcc(*'mp4v'), self.source.frame_rate, (width, height))
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


def write_picture(path: Path, image: np.ndarray) -> None:
    """Write a PNG file; leave no partial file if that fails.

    Raises:
        OSError: the file cannot be written.
    """
    content = cv2.imencode('.png', image)[1].tobytes()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        with suppress(OSError):
            path.unlink()
        raise OSError(f'{path} cannot be written: {error.strerror}') from error


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
        self.seconds: Deque[float] = deque(maxlen=1000)

    def predict_all(self, sources: Sequence[Source]) -> None:
        """Predict all sources; Ctrl-C stops a camera without an error if it is the last source."""
        for source in sources:
            try:
                self._predict_source(source)
            except KeyboardInterrupt:
                endless = isinstance(source.video, int) and self.args.max_frames is None
                if not (endless and source is sources[-1]):
                    raise

    def _predict_source(self, source: Source) -> None:
        total = len(source)
        limit = None if source.video is None else self.args.max_frames
        bar = self.bars.add_task(source.name, total=min(total, limit or total) or None)
        pictures = Pictures(self.args.out, source)
        try:
            for frame in islice(source, limit):
                self._predict_frame(frame, pictures)
                self.bars.advance(bar)
        finally:
            pictures.close()
        try:
            pictures.check()
        except OSError as error:
            self._fail(str(error))

    def _predict_frame(self, frame: Frame, pictures: Pictures) -> None:
        try:
            image = frame.read()
            prediction = self.predictor(image)
            self.results.add(frame.name, image.shape[:2], prediction.sample)
            self.seconds.append(prediction.seconds)
            if not self.args.no_pictures:
                drawn = self.predictor.draw(image, prediction, self.args.min_score)
                pictures.add(frame, drawn)
        except NotWritten:  # no later result could be written either
            raise
        except FrameError as error:
            self._fail(str(error))
        except Exception as error:  # for example out of memory, or an unwritable picture
            self._fail(f'image {frame.name}: {type(error).__name__}: {error_text(error)}')

    def _fail(self, text: str) -> None:
        self.faults += 1
        self.bars.console.print(text, style='red', soft_wrap=True)


def run(args: argparse.Namespace, console: Console) -> int:
    """Predict all sources and return the number of images and videos that failed."""
    sources = open_sources(args.sources, args.max_megapixels)
    path = args.out / 'predictions.json'
    check_writable(path)
    predictor = Predictor(load_config(args.config, args.cfg_options), args.checkpoint, args.device)
    with ResultsFile(path, predictor.classes, args.min_score) as results:
        try:
            with progress_bars(console) as bars:
                job = Run(args, predictor, results, bars)
                job.predict_all(sources)
            results.finish()
        except BaseException:
            if results.exists:
                text = f'ended early: {results.count} images are in {results.lines}'
                print(text, file=sys.stderr)
            raise
    if results.count:
        milliseconds = 1e3 * statistics.median(job.seconds)
        text = f'{results.count} images, {milliseconds:.0f} ms an image (median): {path}'
        console.print(text, highlight=False, soft_wrap=True)
    return job.faults


def main(argv: Optional[List[str]] = None) -> int:
    args = parse_args(argv)
    try:
        with errors_in_one_line(args.debug):
            faults = run(args, plain_console())
    except KeyboardInterrupt:
        print('error: interrupted', file=sys.stderr)
        return 128 + signal.SIGINT
    if faults:
        print(f'error: {faults} image(s) or video(s) failed, named above', file=sys.stderr)
    return 1 if faults else 0
