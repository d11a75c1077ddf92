"""Predict images, folders, videos or a camera with a detector, segmentor or classifier."""

import argparse
import json
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
from ..apis.sources import output_names
from ..apis.videos import frame_count
from ..utils import WriteError, check_writable
from ..utils.command_line import error_text, errors_in_one_line, plain_console, progress_bars

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
        if source.video is None:  # a video is drawn anew from its first frame
            rest = [path for path in source.paths if source.name_of(path) not in self.results]
            source = replace(source, paths=rest)
        total = len(source)
        limit = None if source.video is None else self.args.max_frames
        bar = self.bars.add_task(source.name, total=min(total, limit or total) or None)
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
            if not is_done:
                self.results.add(frame.name, image.shape[:2], prediction.sample)
            self.seconds.append(prediction.seconds)
            if frame.name in pictures.names and prediction.segmentation is not None:
                prediction.save_labels(
                    self.args.out / 'labels' / f'{pictures.names[frame.name]}.png'
                )
            if not self.args.no_pictures:
                pictures.add(prediction)
        except WriteError:  # no later result could be written either
            raise
        except FrameError as error:
            self._fail(str(error))
        except Exception as error:  # for example out of memory, or an unwritable picture
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


def can_start(args: argparse.Namespace, path: Path, sources: Sequence[Source]) -> bool:
    """Return False if --resume finds a complete run.

    Raises:
        FileExistsError: there are lines of an interrupted run, and no --resume.
        ValueError: --resume with a camera.
    """
    lines = path.with_suffix('.jsonl')
    if not args.resume:
        if lines.exists():
            raise FileExistsError(
                f'{lines} has the predictions of an interrupted or running command: --resume '
                'continues it; to begin anew remove the file, or name another --out'
            )
        return True
    if any(isinstance(source.video, int) for source in sources):
        raise ValueError('--resume is for images and videos; a camera shows other frames now')
    return lines.exists() or not path.exists()


def run(args: argparse.Namespace, console: Console) -> int:
    """Predict all sources and return the number of images and videos that failed."""
    sources = open_sources(args.sources, args.max_megapixels)
    path = args.out / 'predictions.json'
    check_writable(path)
    if not can_start(args, path, sources):
        console.print(f'{path} is complete', highlight=False, soft_wrap=True)
        return 0
    predictor = load(args.config, args.checkpoint, args.device, args.tta, args.cfg_options)
    reason = predictor.packed_unsupported_reason
    if args.batch_size > 1 and reason:
        predictor.notes.append(f'images are predicted one by one: {reason}')
    for source in sources:
        if source.passed_over:
            listed = ', '.join(f'{count} x {name}' for name, count in source.passed_over.items())
            predictor.notes.append(f'files of {source.name} that are no images: {listed}')
    for note in predictor.notes:
        console.print(note, highlight=False, soft_wrap=True)
    if predictor.task == 'segmentation':
        write_file(args.out / 'legend.json', legend(predictor.categories).encode())
    settings = dict(
        config=args.config, checkpoint=args.checkpoint, tta=args.tta,
        cfg_options=repr(args.cfg_options),
    )  # fmt: skip
    with ResultsFile(path, predictor.categories, args.min_score, settings, args.resume) as results:
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
                text = (
                    f'ended early: {results.count} images are in {results.lines}; the same command '
                    'with --resume continues'
                )
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
