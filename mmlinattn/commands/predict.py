"""Predicts images, folders, videos or a camera, with a model of any of the three frameworks.

Writes a picture of each image, a video of each video, and all predictions in COCO's format. An
image that cannot be read is named, the others are predicted, and the exit code is 1.
"""

import argparse
import itertools
import json
import sys
from pathlib import Path
from typing import List, Optional, Tuple

import cv2
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..engine.command_line import Parser, errors_in_one_line
from ..engine.config import load_config
from ..files import check_writable
from ..inference import Frame, FrameError, Prediction, Predictor, Source, coco_json, open_sources


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
    add('--device', default='cpu', help='cpu, cuda, cuda:1, ...')
    args = parser.parse_args(argv)
    if not 0 <= args.min_score <= 1:
        parser.error(f'--min-score must be 0 to 1, got {args.min_score}')
    if args.max_frames is not None and args.max_frames < 1:
        parser.error(f'--max-frames must be positive, got {args.max_frames}')
    return args


class Pictures:
    """Writes what was drawn: a picture a frame, or one video of them."""

    def __init__(self, folder: Path, source: Source) -> None:
        self.folder, self.source = folder, source
        self.video: Optional[cv2.VideoWriter] = None

    def add(self, frame: Frame, drawn) -> None:
        if self.source.video is None:
            # Behind the whole name: a.png and a.jpg may lie side by side.
            path = self.folder / f'{frame.name}.png'
            path.parent.mkdir(parents=True, exist_ok=True)
            if not cv2.imwrite(str(path), drawn):
                raise OSError(f'{path} cannot be written')
            return
        if self.video is None:
            path = self.folder / f'{self.source.name}.mp4'
            height, width = drawn.shape[:2]
            code = cv2.VideoWriter_fourcc(*'mp4v')
            self.video = cv2.VideoWriter(str(path), code, self.source.frame_rate, (width, height))
            if not self.video.isOpened():
                raise OSError(f'{path} cannot be written as a video')
        self.video.write(drawn)

    def close(self) -> None:
        if self.video is not None:
            self.video.release()


def run(args: argparse.Namespace, console: Console) -> int:
    """Number of images and videos that could not be read."""
    sources = open_sources(args.sources)
    path = args.out / 'predictions.json'
    check_writable(path)
    predictor = Predictor(load_config(args.config, args.cfg_options), args.checkpoint, args.device)
    done: List[Tuple[str, Tuple[int, int], Prediction]] = []
    faults: List[str] = []
    columns = (TextColumn('{task.description}'), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as bars:
        for source in sources:
            total = len(source)
            limit = None if source.video is None else args.max_frames
            bar = bars.add_task(source.name, total=min(total, limit or total) or None)
            pictures, before = Pictures(args.out, source), len(done)
            try:
                for frame in itertools.islice(source, limit):
                    try:
                        image = frame.read()
                    except FrameError as error:
                        faults.append(str(error))
                        console.print(str(error), style='red', markup=False, soft_wrap=True)
                    else:
                        prediction = predictor(image)
                        done.append((frame.name, image.shape[:2], prediction))
                        if not args.no_pictures:
                            drawn = predictor.draw(image, prediction, args.min_score)
                            pictures.add(frame, drawn)
                    bars.advance(bar)
            except KeyboardInterrupt:  # how a camera is stopped; what was predicted is kept
                console.print('stopped')
                break
            finally:
                pictures.close()
            if source.video is not None and len(done) == before:
                faults.append(f'video {source.name} has no frame that can be read')
                console.print(faults[-1], style='red', markup=False, soft_wrap=True)
    samples = ((name, shape, prediction.sample) for name, shape, prediction in done)
    path.write_text(json.dumps(coco_json(samples, predictor.classes, args.min_score)) + '\n')
    seconds = sorted(prediction.seconds for *_, prediction in done)
    if done:
        median = 1e3 * seconds[len(seconds) // 2]
        console.print(
            f'{len(done)} images, {median:.0f} ms an image (median): {path}', highlight=False
        )
    return len(faults)


def main(argv: Optional[List[str]] = None) -> int:
    args = parse_args(argv)
    with errors_in_one_line(args.debug):
        faults = run(args, Console())
    if faults:
        print(f'error: {faults} image(s) or video(s) could not be read', file=sys.stderr)
    return 1 if faults else 0
