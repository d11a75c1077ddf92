"""Predictions on disk: line by line while they are made, one COCO file at the end."""

import json
import os
from pathlib import Path
from typing import Iterable, Iterator, Sequence, TextIO, Tuple

from mmengine.structures import BaseDataElement

from ..utils import NotWritten, check_writable, whole_file
from .coco import coco_categories, coco_record, numbered_annotations, numbered_images


class ResultsFile:
    """A COCO file of predictions that keeps none of them in memory.

    Each prediction becomes a line of ``NAME.jsonl`` at once. :meth:`finish` makes ``NAME.json`` of
    these lines and removes them. A run that was ended therefore leaves ``NAME.jsonl`` with all that
    was predicted, and no ``NAME.json``; :func:`lines_to_coco` converts it.

    Args:
        path: ``NAME.json``. An older file of this name, and its lines, are removed.
        classes: names.
        min_score: objects and classes that are less sure are left out.

    Attributes:
        lines: path of ``NAME.jsonl``.
        count: number of images written.

    Raises:
        NotWritten: the files cannot be written.
    """

    def __init__(self, path: Path, classes: Sequence[str], min_score: float = 0.0) -> None:
        self.path, self.lines, self.min_score = path, path.with_suffix('.jsonl'), min_score
        self.count = 0
        check_writable(path)
        for old in (path, self.lines):
            old.unlink(missing_ok=True)
        self._file = self.lines.open('xb', buffering=0)
        self._append(dict(categories=coco_categories(classes)))

    def __enter__(self) -> 'ResultsFile':
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def exists(self) -> bool:
        """False if the lines were deleted, as another run into the same folder does, too."""
        return os.fstat(self._file.fileno()).st_nlink > 0

    def add(self, name: str, shape: Tuple[int, int], sample: BaseDataElement) -> None:
        """Write the prediction of an image.

        Args:
            name: of its file.
            shape: (height, width).
            sample: of the framework, on the CPU.

        Raises:
            NotWritten: the disk is full, or the file was deleted.
        """
        self._append(coco_record(name, shape, sample, self.min_score))
        self.count += 1

    def finish(self) -> None:
        """Write the COCO file and remove the lines.

        Raises:
            NotWritten: the disk is full; the lines stay.
            FileNotFoundError: the lines were deleted.
        """
        lines_to_coco(self.lines, self.path)
        self.lines.unlink()

    def _append(self, record: dict) -> None:
        line = json.dumps(record).encode() + b'\n'
        try:
            while line:  # a disk that gets full takes a part
                line = line[self._file.write(line) :]
            if not self.exists:
                raise OSError(0, 'it was deleted, or another run has begun to write it')
        except OSError as error:
            raise NotWritten(
                f'{self.lines} cannot be written: {error.strerror} (it got {self.count} images)'
            ) from error


def lines_to_coco(lines: Path, path: Path) -> None:
    """Make a COCO file of the lines that a :class:`ResultsFile` has written.

    Half a line at the end, which a kill may leave, is passed over.

    Args:
        lines: ``predictions.jsonl``.
        path: the COCO file.

    Raises:
        FileNotFoundError: there are no lines.
        NotWritten: the disk is full.
    """
    with lines.open(encoding='utf-8') as file:
        categories = json.loads(file.readline())['categories']
    with whole_file(path) as temporary, temporary.open('w', encoding='utf-8') as out:
        out.write('{"images": [')
        _write_items(out, numbered_images(_records(lines)))
        out.write(f'], "categories": {json.dumps(categories)}, "annotations": [')
        _write_items(out, numbered_annotations(_records(lines)))
        out.write(']}\n')


def _records(lines: Path) -> Iterator[dict]:
    with lines.open(encoding='utf-8') as file:
        next(file)  # categories
        for line in file:
            if line.endswith('\n'):
                yield json.loads(line)


def _write_items(out: TextIO, items: Iterable[dict]) -> None:
    for i, item in enumerate(items):
        out.write(f'{", " if i else ""}{json.dumps(item)}')
