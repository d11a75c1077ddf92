"""Inference with exported files, without their config and checkpoint."""

import importlib.util
import os
from pathlib import Path
from typing import Dict, Sequence, Union

import torch
from torch import Tensor

from .file_metadata import METADATA, FileMetadata

Outputs = Dict[str, Tensor]
SUFFIXES = ('.onnx', '.xml', '.pt2')


class FileError(ValueError):
    """Exported file that cannot be used; the message gives the file and the reason."""


class ExportedFile:
    """File written by ``mmlinattn export``, loaded to run on the CPU.

    Args:
        path: .onnx (onnxruntime), .xml (OpenVINO) or .pt2 (AOTInductor). Its code is executed: load
            only files that you trust, in particular .pt2.
        threads: threads of onnxruntime and OpenVINO; torch's number by default, which .pt2 files
            always use.

    Attributes:
        metadata: description in the file: ``task``, ``classes``, ``stride``, ``shape``, ...
        images: number of images that it has been run on.

    Raises:
        FileNotFoundError: the file does not exist.
        FileError: the file is damaged or not an export, its runtime is not installed, or its
            metadata are missing, damaged or contradictory.
    """

    def __init__(self, path: Union[str, os.PathLike], threads: int = 0) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise FileNotFoundError(f'{self.path} does not exist')
        if self.path.suffix not in READERS:
            raise FileError(f'{self.path} must end in {", ".join(SUFFIXES)}')
        reader, module, package = READERS[self.path.suffix]
        if importlib.util.find_spec(module) is None:
            raise FileError(f'{self.path} needs {module}: pip install {package}')
        try:
            self._run, text = reader(self.path, threads or torch.get_num_threads())
        except Exception as error:  # runtimes raise arbitrary exceptions
            raise FileError(f'{self.path} cannot be loaded: {error}') from error
        if not text:
            raise FileError(f'{self.path} does not say what it is: mmlinattn export writes that')
        try:
            self.metadata = FileMetadata.from_json(text)
        except ValueError as error:
            raise FileError(f'{self.path} has damaged metadata: {error}') from None
        self.images = 0

    def __call__(self, image: Tensor) -> Outputs:
        """Compute named outputs of images (B, 3, H, W) float32, RGB, 0..255.

        Raises:
            FileError: the file does not take this size, or its runtime fails.
        """
        self.check(image)
        try:
            found = self._run(image.contiguous(), self.metadata.outputs)
        except Exception as error:  # runtimes raise arbitrary exceptions
            raise FileError(f'{self.path} cannot be run: {error}') from error
        self.images += len(image)
        return dict(zip(self.metadata.outputs, found))

    def check(self, image: Tensor) -> None:
        """Raise FileError unless the file takes this image size and batch size."""
        height, width = image.shape[-2:]
        metadata = self.metadata
        if metadata.batch is not None and image.shape[0] != metadata.batch:
            raise FileError(
                f'{self.path} takes {metadata.batch} images at once, got {image.shape[0]}'
            )
        if not metadata.dynamic:
            if (height, width) != metadata.shape:
                only = 'x'.join(map(str, metadata.shape))
                raise FileError(f'{self.path} takes {only} alone, got {height}x{width}')
        elif (
            height % metadata.stride
            or width % metadata.stride
            or min(height, width) < metadata.least
        ):
            raise FileError(
                f'{self.path} takes multiples of {metadata.stride} from {metadata.least} on, got '
                f'{height}x{width}'
            )


def _onnxruntime(path: Path, threads: int) -> tuple:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    session = onnxruntime.InferenceSession(path, options, providers=['CPUExecutionProvider'])

    def run(image: Tensor, names: Sequence[str]) -> list:
        return [torch.from_numpy(out) for out in session.run(names, {'image': image.numpy()})]

    return run, session.get_modelmeta().custom_metadata_map.get(METADATA)


def _openvino(path: Path, threads: int) -> tuple:
    import openvino

    core = openvino.Core()
    model = core.read_model(path)
    text = model.get_rt_info([METADATA]).astype(str) if model.has_rt_info([METADATA]) else ''
    options = {'INFERENCE_NUM_THREADS': threads, 'INFERENCE_PRECISION_HINT': 'f32'}
    compiled = core.compile_model(model, 'CPU', options)

    def run(image: Tensor, names: Sequence[str]) -> list:
        found = compiled({'image': image.numpy()})
        return [torch.from_numpy(found[name].copy()) for name in names]

    return run, text


def _aoti(path: Path, threads: int) -> tuple:
    from torch._inductor import aoti_load_package

    from . import nms as suppression  # noqa: F401  registers the operator that detectors call

    program = aoti_load_package(str(path))
    text = program.get_metadata().get(METADATA)

    def run(image: Tensor, names: Sequence[str]) -> list:
        found = program(image)
        return [found[name] for name in names]

    return run, text


READERS: Dict[str, tuple] = {
    '.onnx': (_onnxruntime, 'onnxruntime', 'onnxruntime'),
    '.xml': (_openvino, 'openvino', 'openvino'),
    '.pt2': (_aoti, 'torch', 'torch'),
}
