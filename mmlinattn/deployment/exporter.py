"""Export of a config and checkpoint to files, each compared with the model."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Sequence, Tuple

import torch
from mmengine.config import Config
from torch import Tensor

from ..engine.model import preprocessor_of
from ..utils import atomic_write, check_writable
from ..utils.messages import log_warning
from .capture import capture, check_shape, check_torch, least_side, strides_of
from .compare import difference, fit
from .deployable import Deployable, load
from .exported_file import FileError
from .file_metadata import FileMetadata
from .formats import FORMATS, FormatError, check_format


class ExportSettings(NamedTuple):
    """Export settings.

    Attributes:
        shape: (H, W) to capture at.
        static: accept this size only.
        dynamic_batch: accept any batch size instead of 1.
    """

    shape: Tuple[int, int]
    static: bool = False
    dynamic_batch: bool = False


LARGEST_ONNX = 1.5  # GiB of weights, of more torch writes a second file
LARGE = 0.01  # of a difference; rounding gives 1e-6 to 1e-4


class ExportResult(NamedTuple):
    """Written file, the seconds it took, and its largest difference from the model by size."""

    path: Path
    seconds: float
    errors: Dict[Tuple[int, ...], float]

    def __str__(self) -> str:
        sizes = ', '.join(f'{h}x{w}: {error:.0e}' for (h, w), error in self.errors.items())
        return f'{self.path}, {self.seconds:.0f} s; largest difference from torch at {sizes}'


class Export:
    """Captured model that can be written in several formats.

    Args:
        model: model from :func:`.deployable.load`.
        classes: class names.
        settings: export settings.
        image: (1, 3, h, w) float32, RGB, 0..255, typical of the data; see :func:`sample_image`.
        formats: those to write, for the check of the shape.

    Attributes:
        program: program of ``torch.export``.
        metadata: description that each file carries.

    Raises:
        ValueError: the shape does not fit the stride, or an attention needs a fixed size.
    """

    def __init__(
        self, model: Deployable, classes: Sequence[str], settings: ExportSettings, image: Tensor,
        formats: Sequence[str] = ('onnx',),
    ) -> None:  # fmt: skip
        stride, coarsest = strides_of(model.model)
        shape, dynamic = settings.shape, not settings.static
        check_shape(shape, stride, dynamic, coarsest, formats)
        sizes: List[Tuple[int, ...]] = [shape]
        if dynamic:  # a taller and a wider one, too
            (height, width), more = shape, 2 * stride
            sizes += [(height + more, width), (max(height - stride, more), width + stride)]
        has_size = model.task == 'detection'
        self.inputs: Dict[Tuple[int, ...], Tuple[Tensor, ...]] = {
            size: (fit(image, size), torch.tensor([size]))[: 1 + has_size] for size in sizes
        }
        with torch.no_grad():
            self.expected = [model(*inputs) for inputs in self.inputs.values()]
            if has_size:  # a padded image, too, compared with the framework
                height, width = size = tuple(side - stride // 2 for side in shape)
                padded = torch.tensor(model.padding()).view(1, 3, 1, 1).repeat(1, 1, *shape)
                padded[..., :height, :width] = fit(image, size)
                self.inputs[size] = padded, torch.tensor([size])
                self.expected.append(model.framework_prediction(*self.inputs[size]))
        self.metadata = FileMetadata(
            task=model.task,
            classes=tuple(classes),
            outputs=tuple(self.expected[0]),
            stride=stride,
            dynamic=dynamic,
            shape=shape,
            least=least_side('onnx', stride, coarsest, dynamic),
            batch=None if settings.dynamic_batch else 1,
            padding=model.padding(),
        )
        self.program = capture(model, self.metadata, coarsest)
        self.coarsest = coarsest

    def write(self, name: str, path: Path) -> ExportResult:
        """Write a format and compare the file with the model at up to four sizes.

        Args:
            name: format, a key of :data:`.formats.FORMATS`.
            path: file to write.

        Raises:
            mmlinattn.utils.WriteError: the file cannot be written.
        """
        about = self.metadata
        least = least_side(name, about.stride, self.coarsest, about.dynamic)
        metadata = replace(about, least=least)
        start = time.perf_counter()
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as temporary:
            FORMATS[name].write(self.program, metadata, temporary)
            seconds = time.perf_counter() - start
            try:  # a file that cannot be run replaces no other
                run = FORMATS[name].load(temporary)
                with torch.no_grad():
                    errors = {
                        size: difference(run(*inputs), expected)
                        for (size, inputs), expected in zip(self.inputs.items(), self.expected)
                        if min(inputs[0].shape[2:]) >= metadata.least
                    }
            except FileError as error:
                raise FileError(str(error).replace(str(temporary), str(path))) from error
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
        FormatError: a format is unknown, its package is not installed, or torch is too old, all
            raised before any work; or the weights are too many for an ONNX file.
        mmlinattn.utils.WriteError: the files cannot be written; raised before any work. Errors of
            :func:`.deployable.load` and :class:`Export` are raised unchanged.
    """
    for name in formats:
        check_format(name)
    check_torch()
    paths = {name: out.with_name(out.name + FORMATS[name].suffix) for name in formats}
    for path in paths.values():
        check_writable(path)
    model, classes = load(cfg, checkpoint)
    size = sum(value.nbytes for value in model.parameters()) / 2**30
    if 'onnx' in formats and size > LARGEST_ONNX:
        raise FormatError(
            f'--format onnx: the weights have {size:.2f} GiB, one file takes {LARGEST_ONNX} GiB: '
            'give --format pt2'
        )
    if classes and list(classes) == [f'class {i}' for i in range(len(classes))]:
        log_warning(
            f'neither checkpoint nor test data name {len(classes)} classes: they are class 0, ...'
        )
    exported = Export(model, classes, settings, image, formats)
    warn_of_other_results(cfg, exported.metadata)
    if not any(each.get('count', torch.ones(1)).any() for each in exported.expected):
        log_warning('nothing is detected in the sample, so no boxes are compared: give --sample')
    for name, path in paths.items():
        written = exported.write(name, path)
        if any(not error < LARGE for error in written.errors.values()):
            log_warning(f'{path} differs from the checkpoint: compare the scores of both')
        yield written


def warn_of_other_results(cfg: Config, metadata: FileMetadata) -> None:
    """Warn if a file pads images to other sizes than the config, or merges windows otherwise."""
    if metadata.task == 'classification':
        return
    if (cfg.model.get('test_cfg') or {}).get('mode') == 'slide':
        log_warning(
            'the file gives labels: where sliding windows overlap they vote, and the lower class '
            'wins a tie. The checkpoint averages logits: compare the scores of both'
        )
        return
    given, stride, (height, width) = preprocessor_of(cfg), metadata.stride, metadata.shape
    results, divisor = 'detections', given.get('pad_size_divisor')
    option, size = f'pad_size_divisor={stride}', ()
    if metadata.task == 'segmentation':
        given = given.get('test_cfg') or {}
        results, divisor, size = 'labels', given.get('size_divisor'), tuple(given.get('size') or ())
        name = f'size_divisor={stride}' if metadata.dynamic else f'size=({height}, {width})'
        option = f'test_cfg=dict({name})'
    sides, pads_alike = f'multiples of {stride}', (divisor or 1) % stride == 0
    cure = f'Set model.data_preprocessor.{option} in the config for equal {results}'
    if not metadata.dynamic:
        sides, pads_alike = f'{height}x{width}', size == (height, width)
        if metadata.task == 'detection':
            cure = 'Export with dynamic sizes if images have others'
    if not pads_alike:
        log_warning(
            f'the file pads images to {sides}, the config does not: {results} of images of other '
            f'sizes may differ from those of the checkpoint. {cure}'
        )
