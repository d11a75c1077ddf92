"""Incremental writing of predictions: JSON lines during the run, one COCO file at the end."""

import itertools
import json
import os
from pathlib import Path
from typing import Any, Iterable, Iterator, Optional, Sequence, Set, TextIO, Tuple

from mmengine.structures import BaseDataElement

from ..utils import WriteError, atomic_write, check_writable
from .coco import coco_file_name, coco_record, numbered_annotations, numbered_images


class ResultsFile:
    """COCO file of predictions, written without keeping them in memory.

    Each prediction is appended to ``NAME.jsonl`` at once. :meth:`finish` converts these lines to
    ``NAME.json`` and removes them. An interrupted run leaves ``NAME.jsonl`` with all predictions so
    far; :func:`lines_to_coco` converts it.

    Args:
        path: ``NAME.json``. An older file of this name is removed.
        categories: see :func:`.categories.coco_categories`.
        min_score: lowest score of the objects and classes to keep.
        settings: options of the run, of types of JSON, which a continued run must share.
        resume: keep the lines of an interrupted run. Without it they are removed.

    Attributes:
        lines: path of ``NAME.jsonl``.
        count: number of images written.

    Raises:
        WriteError: the files cannot be written.
        ValueError: with ``resume``, the lines are damaged, or of a run with other settings or
            categories.
    """

    def __init__(
        self,
        path: Path,
        categories: Sequence[dict],
        min_score: float = 0.0,
        settings: Optional[dict] = None,
        resume: bool = False,
    ) -> None:
        self.path, self.lines, self.min_score = path, path.with_suffix('.jsonl'), min_score
        self.categories, self.count = categories, 0
        self._done: Set[str] = set()
        check_writable(path)
        header = dict(settings=settings or {}, categories=[*categories])
        continued = resume and check_continues(self.lines, **header)
        if continued:
            self._keep_lines()
        path.unlink(missing_ok=True)
        if not continued:
            self.lines.unlink(missing_ok=True)
        self._file = self.lines.open('ab' if continued else 'xb', buffering=0)
        if not continued:
            self._append(header)

    def __enter__(self) -> 'ResultsFile':
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def exists(self) -> bool:
        """False if the lines were deleted, for example by another run in the same folder."""
        return os.fstat(self._file.fileno()).st_nlink > 0

    def __contains__(self, name: str) -> bool:
        """Return True if an interrupted run, which this one continues, has written the image."""
        return coco_file_name(name) in self._done

    def num_frames(self, video: str) -> int:
        """Return the number of frames of a video that an interrupted run has written."""
        return sum(name.startswith(f'{coco_file_name(video)}#') for name in self._done)

    def add(
        self,
        name: str,
        shape: Tuple[int, int],
        sample: BaseDataElement,
        is_complete: bool = True,
    ) -> None:
        """Write the prediction of an image, after its pictures.

        Args:
            name: file name of the image.
            shape: (height, width).
            sample: data sample of the framework, on the CPU.
            is_complete: False if a picture could not be written, so that a continued run predicts
                the image again.

        Raises:
            WriteError: the disk is full, or the file was deleted.
        """
        record = coco_record(name, shape, sample, self.categories, self.min_score)
        self._append(record if is_complete else dict(record, is_complete=False))
        self.count += 1

    def finish(self) -> None:
        """Write the COCO file and remove the lines.

        Raises:
            WriteError: the disk is full; the lines are kept.
            FileNotFoundError: the lines were deleted.
        """
        lines_to_coco(self.lines, self.path)
        self.lines.unlink()

    def _keep_lines(self) -> None:
        """Replace the file by its complete lines; a run that still writes it ends with an error."""
        with (
            self.lines.open('rb') as lines,
            atomic_write(self.lines) as temporary,
            temporary.open('wb') as kept,
        ):
            kept.write(next(lines))
            for line in itertools.takewhile(lambda line: line.endswith(b'\n'), lines):
                record = json.loads(line)
                if record.get('is_complete', True):
                    kept.write(line)
                    self._done.add(record['file_name'])
        self.count = len(self._done)

    def check(self) -> None:
        """Raise WriteError if the file was deleted, for example by another run."""
        if not self.exists:
            raise self._error('it was deleted, or another run has begun to write it')

    def _append(self, record: dict) -> None:
        line = json.dumps(record).encode() + b'\n'
        try:
            while line:  # a disk that becomes full accepts only a part
                line = line[self._file.write(line) :]
        except OSError as error:
            raise self._error(error.strerror) from error
        self.check()

    def _error(self, reason: Optional[str]) -> WriteError:
        return WriteError(f'{self.lines} cannot be written: {reason} (it got {self.count} images)')


def check_continues(lines: Path, **header: Any) -> bool:
    """Check that the lines of an interrupted run can be continued; return False if there are none.

    Args:
        lines: ``predictions.jsonl``.
        header: what the first line must have: ``settings``, ``categories``.

    Raises:
        ValueError: the first line is damaged, or has other values.
    """
    first = b''
    if lines.exists():
        with lines.open('rb') as file:
            first = file.readline()
    if not first.endswith(b'\n'):
        return False
    cure = 'remove the file, or name another --out'
    try:
        saved = json.loads(first)
        before = saved['settings']
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f'{lines} is damaged or of an older version: {cure}') from error
    for name, value in header['settings'].items():
        if before.get(name) != value:
            raise ValueError(
                f'{lines} is of a run with {name}={before.get(name)!r}, not {value!r}: repeat its '
                f'options, or {cure}'
            )
    if header.get('categories', saved['categories']) != saved['categories']:
        raise ValueError(f'{lines} is of a model with other classes: {cure}')
    return True


def lines_to_coco(lines: Path, path: Path) -> None:
    """Convert the lines of a :class:`ResultsFile` to a COCO file.

    An incomplete last line, which a killed run may leave, is skipped.

    Args:
        lines: ``predictions.jsonl``.
        path: the COCO file.

    Raises:
        FileNotFoundError: ``lines`` does not exist.
        WriteError: the disk is full.
    """
    with lines.open(encoding='utf-8') as file:
        categories = json.loads(file.readline())['categories']
    with atomic_write(path) as temporary, temporary.open('w', encoding='utf-8') as out:
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
