"""Export formats: ONNX, OpenVINO, AOTInductor."""

import contextlib
import importlib.util
import io
import logging
import shutil
import tempfile
from pathlib import Path
from typing import Callable, Dict, Iterator, NamedTuple, Tuple

import torch
from torch.export import ExportedProgram

from .file_metadata import METADATA, FileMetadata
from .nms import onnx_translations

OPSET = 18


class FormatError(ValueError):
    """Format that cannot be written on this machine, or cannot hold the model."""


class Format(NamedTuple):
    """Export format.

    Attributes:
        suffix: suffix of its file.
        write: function of program, metadata and path that writes the file.
        packages: required packages, as pairs of module and argument of pip install.
    """

    suffix: str
    write: Callable[[ExportedProgram, FileMetadata, Path], None]
    packages: Tuple[Tuple[str, str], ...]


def write_onnx(program: ExportedProgram, metadata: FileMetadata, path: Path) -> None:
    """Write an ONNX file; above 2 GB the weights are stored beside it.

    Constants are folded and common subexpressions are shared. Folding also replaces sequences of
    tensors, which TensorRT does not support. onnxscript's full optimizer is left out: it would take
    longer than all other steps, and runtimes optimise what they load.
    """
    from onnx_ir.passes.common import CommonSubexpressionEliminationPass, RemoveUnusedNodesPass
    from onnxscript.optimizer import fold_constants

    with silence():
        onnx_program = torch.onnx.export(
            program,
            (),
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
            optimize=False,
            custom_translation_table=onnx_translations(),
            input_names=['image'],
            output_names=list(metadata.outputs),
        )
        assert onnx_program is not None  # with dynamo=True
        fold_constants(onnx_program.model)
        RemoveUnusedNodesPass()(onnx_program.model)
        CommonSubexpressionEliminationPass()(onnx_program.model)
    onnx_program.model.metadata_props[METADATA] = metadata.to_json()
    size = sum(weight.numel() * weight.element_size() for weight in program.state_dict.values())
    onnx_program.save(path, external_data=size > 1.9e9)


def write_openvino(program: ExportedProgram, metadata: FileMetadata, path: Path) -> None:
    """Write an .xml with its .bin, converted from the ONNX file of the same program."""
    import openvino

    with tempfile.TemporaryDirectory() as folder:
        onnx_file = Path(folder) / 'model.onnx'
        write_onnx(program, metadata, onnx_file)
        model = openvino.convert_model(onnx_file)
    model.set_rt_info(metadata.to_json(), [METADATA])
    openvino.save_model(model, path, compress_to_fp16=False)


def write_aoti(program: ExportedProgram, metadata: FileMetadata, path: Path) -> None:
    """Write a .pt2 with code compiled for this machine's processor."""
    if shutil.which('g++') is None and shutil.which('clang++') is None:
        raise FormatError('aoti needs a C++ compiler (g++ or clang++), there is none')
    from torch._inductor import aoti_compile_and_package

    options = {
        'aot_inductor.metadata': {METADATA: metadata.to_json()},
        # Otherwise loops use the thread count of this machine on any other machine.
        'cpp.dynamic_threads': True,
    }
    with silence():
        aoti_compile_and_package(program, package_path=str(path), inductor_configs=options)


PACKAGES = 'onnx onnxscript onnxruntime'
ONNX = tuple((name, PACKAGES) for name in ('onnx', 'onnxscript', 'onnxruntime'))
FORMATS: Dict[str, Format] = {
    'onnx': Format('.onnx', write_onnx, ONNX),
    'openvino': Format(
        '.xml',
        write_openvino,
        (*ONNX, ('openvino', 'openvino')),
    ),
    'aoti': Format('.pt2', write_aoti, ()),
}


# Formats that were tried and do not work, with the reason.
REFUSED = {
    'executorch': 'ExecuTorch 1.2 does not lower these models to XNNPACK, and its portable kernels '
    'do not run them',
}


def check_format(name: str) -> None:
    """Raise FormatError if a format is unknown or unsupported, or its package is not installed."""
    if name in REFUSED:
        raise FormatError(f'--format {name} is not served: {REFUSED[name]} (docs/export.md)')
    if name not in FORMATS:
        raise FormatError(f'--format {name}: there are {", ".join(FORMATS)}')
    for module, package in FORMATS[name].packages:
        if importlib.util.find_spec(module) is None:
            raise FormatError(f'--format {name} needs {module}: pip install {package}')


def write(name: str, program: ExportedProgram, metadata: FileMetadata, path: Path) -> None:
    """Write a captured model in a format; leave nothing at ``path`` if that fails.

    Args:
        name: format, a key of :data:`FORMATS`.
        program: see :func:`.capture.capture`.
        metadata: see :func:`.exporter.describe`.
        path: file to write.

    Raises:
        FormatError: see :func:`check_format`.
    """
    check_format(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix='.export-') as folder:
        FORMATS[name].write(program, metadata, Path(folder) / path.name)
        for file in Path(folder).iterdir():  # OpenVINO stores weights in a second file
            file.replace(path.parent / file.name)


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Disable logs and output in the block: exporters report details that users cannot change."""
    logging.disable(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(logging.NOTSET)
