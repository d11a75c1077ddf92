"""Predict images and folders with a model of a config."""

import argparse
import os
import statistics
import sys
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Dict, Iterable, List

import numpy as np
from rich.progress import Progress

from ..apis import Prediction, Predictor, coco_json, image_files, load
from ..engine.model import check_device
from ..utils import check_writable, write_json
from ..utils.command_line import error_text, plain_console, progress_bars


class Job:
    """Prediction of image files, with pictures of each batch written before the next is read.

    An image that fails is named and counted in ``faults``, and the others are predicted.
    """

    def __init__(self, args: argparse.Namespace, predictor: Predictor, bars: Progress) -> None:
        self.args, self.predictor, self.bars = args, predictor, bars
        self.records: List[dict] = []
        self.seconds: List[float] = []
        self.faults = 0

    def predict_all(self, files: Dict[str, Path]) -> None:
        bar = self.bars.add_task('images', total=len(files))
        pictures, names = picture_names(files), iter(files)
        while batch := list(islice(names, self.args.batch_size)):
            images = {}
            for name in batch:
                try:
                    images[name] = self.predictor.read(files[name], self.args.max_megapixels)
                except ValueError as error:
                    self.fail(str(error))
            for prediction in self.predict(images):
                self.keep(prediction, pictures[prediction.name])
            self.bars.advance(bar, len(batch))

    def predict(self, images: Dict[str, np.ndarray]) -> List[Prediction]:
        """Predict a batch; if it fails, its images one by one."""
        try:
            return self.predictor.predict_batch([*images.values()], [*images], self.args.min_score)
        except Exception as error:  # models raise arbitrary exceptions, such as out of memory
            if len(images) > 1:
                return [found for one in images.items() for found in self.predict(dict([one]))]
            self.fail_on(''.join(images), error)
            return []

    def keep(self, prediction: Prediction, picture: str) -> None:
        """Write the pictures of a prediction under a name, and keep its record."""
        self.seconds.append(prediction.seconds)
        self.records.append(prediction.record())
        try:
            if prediction.segmentation is not None:
                prediction.save_labels(self.args.out / 'labels' / picture)
            if not self.args.no_pictures:
                prediction.save(self.args.out / 'vis' / picture)
        except Exception as error:  # for example a name that is too long
            self.fail_on(prediction.name, error)

    def fail_on(self, name: str, error: Exception) -> None:
        self.fail(f'image {name}: {type(error).__name__}: {error_text(error)}')

    def fail(self, text: str) -> None:
        self.faults += 1
        self.bars.console.print(text, style='red', soft_wrap=True)


def picture_names(names: Iterable[str]) -> Dict[str, str]:
    """Return the name of the pictures of each image.

    They keep the suffix of the image only where names differ in nothing else.
    """
    stems = {name: os.path.splitext(name)[0] for name in names}
    counts = Counter(stems.values())
    return {
        name: f'{stem if counts[stem] == 1 and stem not in stems else name}.png'
        for name, stem in stems.items()
    }


def files_to_predict(args: argparse.Namespace) -> Dict[str, Path]:
    """Return the images of the sources, without the pictures of this and of earlier predictions."""
    written = {(args.out / name).resolve() for name in ('vis', 'labels')}

    def is_written(name: str, path: Path) -> bool:
        below = path.parents[: len(Path(name).parts) - 1]  # of the source, which may be any folder
        return not written.isdisjoint(path.resolve().parents) or any(
            folder.name in ('vis', 'labels') and (folder.parent / 'predictions.json').exists()
            for folder in below
        )

    found = image_files(args.sources)
    return {name: path for name, path in found.items() if not is_written(name, path)}


def main(args: argparse.Namespace) -> int:
    console = plain_console()
    files, path = files_to_predict(args), args.out / 'predictions.json'
    check_writable(path)
    device = check_device(args.device)
    predictor = load(args.config, args.checkpoint, device, args.tta, args.cfg_options)
    for note in predictor.notes:
        console.print(note, highlight=False, soft_wrap=True)
    with progress_bars(console) as bars:
        job = Job(args, predictor, bars)
        try:
            job.predict_all(files)
        except BaseException:  # Ctrl-C or SIGTERM
            print(f'ended early: {path} has {len(job.records)} images', file=sys.stderr)
            raise
        finally:
            write_json(path, coco_json(job.records, predictor.categories), indent=None)
    if job.seconds:
        milliseconds = 1e3 * statistics.median(job.seconds)
        text = f'{len(job.records)} images, {milliseconds:.0f} ms an image (median): {path}'
        console.print(text, highlight=False, soft_wrap=True)
    if job.faults:
        print(f'error: {job.faults} image(s) failed, named above', file=sys.stderr)
    return 1 if job.faults else 0
