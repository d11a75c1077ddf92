"""From config and checkpoint to exported files, each compared with the model."""

import gc
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import torch
from mmengine.config import Config
from torch import Tensor

from ..utils import check_writable
from .capture import Sizes, capture, check_shape, check_torch, strides_of
from .compare import difference, fit
from .deployable import Deployable, load
from .exported_file import ExportedFile
from .file_metadata import FileMetadata
from .formats import FORMATS, FormatError, check_format, write
from .fp16 import Activation, largest_activation, to_half


class Settings(NamedTuple):
    """What is asked for.

    Attributes:
        shape: (H, W) to capture at.
        static: this size alone.
        dynamic_batch: any number of images at once, not one.
        fp16: half precision.
        raw: what the heads give, see :class:`.models.Deployable`.
    """

    shape: Tuple[int, int]
    static: bool = False
    dynamic_batch: bool = False
    fp16: bool = False
    raw: bool = False


class Written(NamedTuple):
    """A file, the seconds that it took, and its largest difference from the model by size."""

    path: Path
    seconds: float
    errors: Dict[Tuple[int, int], float]

    def __str__(self) -> str:
        text = f'{self.path}, {self.seconds:.0f} s'
        sizes = (f'{h}x{w}: {error:.0e}' for (h, w), error in self.errors.items())
        return f'{text}; largest difference from torch at {", ".join(sizes)}'


class Export:
    """A model captured once.

    Args:
        model: see :func:`.models.load`; with ``fp16`` its weights are changed in place.
        classes: names.
        settings: what is asked for.
        image: (1, 3, h, w) float32, RGB, 0..255, typical of the data; see :func:`sample_image`.

    Attributes:
        program: of ``torch.export``.
        metadata: what each file says about itself.
        seconds: that the capture took.
        largest: with ``fp16``, the largest number that became float16, on the image.

    Raises:
        ValueError: a shape that does not go with the stride, an attention that needs a fixed size;
            with ``fp16`` numbers beyond float16 on the image.
    """

    def __init__(
        self, model: Deployable, classes: Sequence[str], settings: Settings, image: Tensor
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

    def write(self, name: str, path: Path) -> Written:
        """Write a format and runs the file at up to three sizes.

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
        return Written(path, seconds, errors)


def export(
    cfg: Config, checkpoint: str, formats: Sequence[str], settings: Settings, out: Path,
    image: Tensor,
) -> Iterator[Written]:  # fmt: skip
    """Captures a model and writes it, format by format, as ``out`` with the format's suffix.

    Args:
        cfg, checkpoint: see :func:`.models.load`.
        formats: names of :data:`.formats.FORMATS`.
        settings, image: see :class:`Export`.
        out: the files, without suffix.

    Raises:
        FormatError: an unknown format, one whose package is absent or a torch that is too old,
            before any work.
        mmlinattn.utils.NotWritten: files that cannot be written, likewise; and what
            :func:`.models.load` and :class:`Export` raise.
    """
    for name in formats:
        check_format(name)
    check_torch()
    paths = {name: out.with_name(out.name + FORMATS[name].suffix) for name in formats}
    for path in paths.values():
        check_writable(path)
    exported = Export(*load(cfg, checkpoint, settings.raw), settings, image)
    if exported.largest is not None:
        print(f'largest activation: {exported.largest}', flush=True)
    for name, path in paths.items():
        yield exported.write(name, path)


@contextmanager
def _without_collections() -> Iterator[None]:
    """Exporters make millions of objects that stay: to look for garbage among them takes a seventh
    of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def describe(
    model: Deployable, sizes: Sizes, classes: Sequence[str], settings: Settings, outputs: List[str]
) -> FileMetadata:
    """Return what a file says about itself: enough to run it and to read its outputs.

    ``image`` is always (B, 3, H, W) float32, RGB, 0..255: normalisation is inside.
    """
    return FileMetadata(
        task=model.task,
        classes=tuple(classes),
        outputs=tuple(outputs),
        raw=settings.raw,
        stride=sizes.stride,
        dynamic=sizes.dynamic,
        shape=tuple(sizes.shape),
        least=sizes.least,
        batch=sizes.batch,
        fp16=settings.fp16,
        padding=tuple(model.padding()),
    )


def sizes_to_try(sizes: Sizes) -> List[Tuple[int, int]]:
    """The captured size and, where sizes are dynamic, a higher and a wider one."""
    height, width = sizes.shape
    if not sizes.dynamic:
        return [(height, width)]
    more, stride = 2 * sizes.stride, sizes.stride
    return [(height, width), (height + more, width), (max(height - stride, more), width + stride)]
