"""Export of a config and checkpoint to files, each compared with the model."""

import gc
import math
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import torch
from mmengine.config import Config
from torch import Tensor

from ..engine.model import preprocessor_of
from ..utils import check_writable
from .capture import Sizes, capture, check_shape, check_torch, strides_of
from .compare import difference, fit
from .deployable import Deployable, load
from .exported_file import ExportedFile
from .file_metadata import FileMetadata
from .formats import FORMATS, FormatError, check_format, write
from .fp16 import Activation, largest_activation, to_half


class ExportSettings(NamedTuple):
    """Export settings.

    Attributes:
        shape: (H, W) to capture at.
        static: accept this size only.
        dynamic_batch: accept any batch size instead of 1.
        fp16: half precision.
        raw: return the outputs of the heads, see :class:`.deployable.Deployable`.
    """

    shape: Tuple[int, int]
    static: bool = False
    dynamic_batch: bool = False
    fp16: bool = False
    raw: bool = False


class ExportResult(NamedTuple):
    """Written file, the seconds it took, and its largest difference from the model by size."""

    path: Path
    seconds: float
    errors: Dict[Tuple[int, ...], float]

    def __str__(self) -> str:
        text = f'{self.path}, {self.seconds:.0f} s'
        sizes = (f'{h}x{w}: {error:.0e}' for (h, w), error in self.errors.items())
        return f'{text}; largest difference from torch at {", ".join(sizes)}'


class Export:
    """Captured model that can be written in several formats.

    Args:
        model: model from :func:`.deployable.load`; ``fp16`` changes its weights in place.
        classes: class names.
        settings: export settings.
        image: (1, 3, h, w) float32, RGB, 0..255, typical of the data; see :func:`sample_image`.

    Attributes:
        program: program of ``torch.export``.
        metadata: description that each file carries.
        seconds: time of the capture.
        largest: with ``fp16``, the largest float16 activation on the image.

    Raises:
        ValueError: the shape does not fit the stride, an attention needs a fixed size, or with
            ``fp16`` an activation on the image exceeds the range of float16.
    """

    def __init__(
        self, model: Deployable, classes: Sequence[str], settings: ExportSettings, image: Tensor
    ) -> None:
        stride, coarsest = strides_of(model.model)
        check_shape(settings.shape, stride, not settings.static)
        self.sizes = Sizes(
            settings.shape,
            stride,
            not settings.static,
            None if settings.dynamic_batch else 1,
            coarsest,
        )
        self.images = [fit(image, shape) for shape in sizes_to_try(self.sizes)]
        with torch.no_grad():
            self.expected = [model(image) for image in self.images]
        if settings.fp16:
            to_half(model)
        start = time.perf_counter()
        with _without_collections():
            self.program = capture(model, self.sizes)
        self.seconds = time.perf_counter() - start
        self.metadata = describe(model, self.sizes, classes, settings, list(self.expected[0]))
        self.largest: Optional[Activation] = None
        if settings.fp16:
            self.largest = largest_activation(self.program, self.images[0])
            if not self.largest.finite:
                raise FormatError(
                    f'--fp16: {self.largest.place} is beyond 65,504, the largest number of '
                    'float16, on the sample: export without --fp16'
                )

    def write(self, name: str, path: Path) -> ExportResult:
        """Write a format and compare the file with the model at up to three sizes.

        Raises:
            FormatError: see :func:`.formats.check_format`.
        """
        start = time.perf_counter()
        with _without_collections():
            write(name, self.program, self.metadata, path)
        seconds = time.perf_counter() - start
        file = ExportedFile(path)
        errors = {
            tuple(image.shape[-2:]): difference(file(image), expected)
            for image, expected in zip(self.images, self.expected)
        }
        return ExportResult(path, seconds, errors)


def export(
    cfg: Config, checkpoint: str, formats: Sequence[str], settings: ExportSettings, out: Path,
    image: Tensor,
) -> Iterator[ExportResult]:  # fmt: skip
    """Export a model to files of several formats, and yield each when it is written.

    Args:
        cfg, checkpoint: see :func:`.deployable.load`.
        formats: names of :data:`.formats.FORMATS`.
        settings, image: see :class:`Export`.
        out: path of the files, without the suffix of the format.

    Raises:
        FormatError: a format is unknown, its package is not installed, or torch is too old; raised
            before any work.
        mmlinattn.utils.WriteError: the files cannot be written; raised before any work. Errors of
            :func:`.deployable.load` and :class:`Export` are raised unchanged.
    """
    for name in formats:
        check_format(name)
    check_torch()
    paths = {name: out.with_name(out.name + FORMATS[name].suffix) for name in formats}
    for path in paths.values():
        check_writable(path)
    exported = Export(*load(cfg, checkpoint, settings.raw), settings, image)
    note = '' if settings.static else padding_note(cfg, exported.sizes.stride)
    if note:
        print(note, flush=True)
    if exported.largest is not None:
        print(f'largest activation: {exported.largest}', flush=True)
    for name, path in paths.items():
        yield exported.write(name, path)


def padding_note(cfg: Config, stride: int) -> str:
    """Return a note if the framework pads test images to other sizes than an exported file, or ''.

    Example:
        >>> model = dict(data_preprocessor=dict(type='SegDataPreProcessor'))
        >>> note = padding_note(Config(dict(default_scope='mmseg', model=model)), 32)
        >>> note.partition('; ')[2]
        'for equal ones set model.data_preprocessor.test_cfg.size_divisor=32'
    """
    preprocessor = preprocessor_of(cfg)
    if cfg.get('default_scope') == 'mmseg':
        found, name = preprocessor.get('test_cfg') or {}, 'test_cfg.size_divisor'
        divisor = math.gcd(*(found.get('size') or [found.get('size_divisor') or 1]))
    elif cfg.get('default_scope') == 'mmdet':
        name, divisor = 'pad_size_divisor', preprocessor.get('pad_size_divisor') or 1
    else:
        return ''
    if divisor % stride == 0:
        return ''
    return (
        f'note: images are padded to multiples of {stride} for this file, but not by the config, '
        f'which can change labels; for equal ones set model.data_preprocessor.{name}={stride}'
    )


@contextmanager
def _without_collections() -> Iterator[None]:
    """Disable garbage collection in the block.

    Exporters create millions of live objects; searching them for garbage takes a seventh of the
    time.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def describe(
    model: Deployable,
    sizes: Sizes,
    classes: Sequence[str],
    settings: ExportSettings,
    outputs: List[str],
) -> FileMetadata:
    """Return the description that a file carries, enough to run it and to read its outputs.

    ``image`` is always (B, 3, H, W) float32, RGB, 0..255: the file normalises it.
    """
    return FileMetadata(
        task=model.task,
        classes=tuple(classes),
        outputs=tuple(outputs),
        raw=settings.raw,
        stride=sizes.stride,
        dynamic=sizes.dynamic,
        shape=(sizes.shape[0], sizes.shape[1]),
        least=sizes.least,
        batch=sizes.batch,
        fp16=settings.fp16,
        padding=model.padding(),
    )


def sizes_to_try(sizes: Sizes) -> List[Tuple[int, int]]:
    """Return the captured size and, if sizes are dynamic, a taller and a wider one."""
    height, width = sizes.shape
    if not sizes.dynamic:
        return [(height, width)]
    more, stride = 2 * sizes.stride, sizes.stride
    return [(height, width), (height + more, width), (max(height - stride, more), width + stride)]
