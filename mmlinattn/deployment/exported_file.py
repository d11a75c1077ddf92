"""Inference with exported ONNX files, without their config and checkpoint."""

import os
from pathlib import Path
from typing import Dict, Optional, Union

import torch
from torch import Tensor

from ..utils.errors import InputError
from .file_metadata import METADATA, FileMetadata

Outputs = Dict[str, Tensor]


class FileError(InputError):
    """Exported file that cannot be used; the message gives the file and the reason."""


class ExportedFile:
    """ONNX file written by ``mmlinattn export``, loaded to run on the CPU.

    Args:
        path: the file. Load only files that you trust.
        threads: threads of onnxruntime; torch's number by default.

    Attributes:
        metadata: description in the file: ``task``, ``classes``, ``stride``, ``shape``, ...

    Raises:
        FileNotFoundError: the file does not exist.
        FileError: the file is damaged or not an export, onnxruntime is not installed, or the
            metadata are missing or damaged.
    """

    def __init__(self, path: Union[str, os.PathLike], threads: int = 0) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise FileNotFoundError(f'{self.path} does not exist')
        try:
            import onnxruntime

            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = threads or torch.get_num_threads()
            options.log_severity_level = 4
            self.session = onnxruntime.InferenceSession(
                self.path, options, providers=['CPUExecutionProvider']
            )
        except ImportError as error:
            raise FileError(f'{self.path} needs onnxruntime: pip install onnxruntime') from error
        except Exception as error:  # onnxruntime raises arbitrary exceptions
            raise FileError(f'{self.path} cannot be loaded: {error}') from error
        text = self.session.get_modelmeta().custom_metadata_map.get(METADATA)
        if not text:
            raise FileError(f'{self.path} does not say what it is: mmlinattn export writes that')
        try:
            self.metadata = FileMetadata.from_json(text)
        except ValueError as error:
            raise FileError(f'{self.path} has damaged metadata: {error}') from None

    def __call__(self, image: Tensor, size: Optional[Tensor] = None) -> Outputs:
        """Compute named outputs of images (B, 3, H, W) float32, RGB, 0..255.

        Args:
            image: the images.
            size: (B, 2) int64, for detectors: height and width before padding, (H, W) by default.

        Raises:
            FileError: the file does not take these images or sizes, or onnxruntime fails.
        """
        is_tensor = isinstance(image, Tensor)
        if not is_tensor or image.dtype != torch.float32 or image.shape[1:-2] != (3,):
            got = f'{image.dtype} {tuple(image.shape)}' if is_tensor else type(image).__name__
            raise FileError(f'{self.path} takes a float32 tensor (B, 3, H, W), got {got}')
        metadata, (height, width) = self.metadata, image.shape[-2:]
        if metadata.batch not in (None, len(image)):
            raise FileError(f'{self.path} takes {metadata.batch} images at once, got {len(image)}')
        if not metadata.dynamic and (height, width) != metadata.shape:
            only = 'x'.join(map(str, metadata.shape))
            raise FileError(f'{self.path} takes {only} alone, got {height}x{width}')
        if any(side % metadata.stride or side < metadata.least for side in (height, width)):
            raise FileError(
                f'{self.path} takes multiples of {metadata.stride} from {metadata.least} on, got '
                f'{height}x{width}'
            )
        inputs = {'image': image.detach().contiguous().numpy()}
        if metadata.task == 'detection':
            most = torch.tensor([[height, width]] * len(image))
            size = most if size is None else size
            is_pairs = isinstance(size, Tensor) and size.dtype == torch.int64
            is_pairs = is_pairs and size.shape == most.shape
            if not is_pairs or not ((size > 0) & (size <= most)).all():
                raise FileError(
                    f'{self.path} takes size as int64 (B, 2), heights and widths of up to '
                    f'{height}x{width}, got {size}'
                )
            inputs['size'] = size.contiguous().numpy()
        try:
            found = self.session.run(metadata.outputs, inputs)
        except Exception as error:  # onnxruntime raises arbitrary exceptions
            raise FileError(f'{self.path} cannot be run: {error}') from error
        return {name: torch.from_numpy(out) for name, out in zip(metadata.outputs, found)}


def is_exported(path: str) -> bool:
    """Return True if the name is that of an exported file, not of a checkpoint."""
    return Path(path).suffix.lower() == '.onnx'
