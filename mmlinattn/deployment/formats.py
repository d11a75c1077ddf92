"""Export formats: ONNX and torch.export."""

import contextlib
import importlib.util
import io
import logging
from pathlib import Path
from typing import Callable, Dict, Iterator, NamedTuple, Tuple

import torch
from torch.export import ExportedProgram

from .exported_file import ExportedFile, Outputs
from .file_metadata import METADATA, FileMetadata
from .nms import onnx_translations

OPSET = 18


class FormatError(ValueError):
    """Format that cannot be written on this machine, or cannot hold the model."""


class Format(NamedTuple):
    """Export format: suffix, writer and reader of its file, and the packages that these need."""

    suffix: str
    write: Callable[[ExportedProgram, FileMetadata, Path], None]
    load: Callable[[Path], Callable[..., Outputs]]
    packages: Tuple[str, ...] = ()


@contextlib.contextmanager
def _onnx_errors() -> Iterator[None]:
    """Raise FormatError with the last line of torch's message: the operator that ONNX lacks."""
    try:
        yield
    except torch.onnx.OnnxExporterError as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        reason = (str(cause).strip() or type(cause).__name__).splitlines()[-1]
        raise FormatError(f'--format onnx: {reason}; give --format pt2') from error


def write_onnx(program: ExportedProgram, metadata: FileMetadata, path: Path) -> None:
    """Write an ONNX file.

    Constants are folded and common subexpressions are shared. Folding also replaces sequences of
    tensors, which TensorRT does not support. onnxscript's full optimizer is left out: it would take
    longer than all other steps, and runtimes optimise what they load.
    """
    from onnx_ir.passes.common import CommonSubexpressionEliminationPass, RemoveUnusedNodesPass
    from onnxscript.optimizer import fold_constants

    with silence(), _onnx_errors():
        onnx_program = torch.onnx.export(
            program,
            (),
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
            optimize=False,
            custom_translation_table=onnx_translations(),
            input_names=list(program.graph_signature.user_inputs),
            output_names=list(metadata.outputs),
        )
        assert onnx_program is not None  # with dynamo=True
        fold_constants(onnx_program.model)
        RemoveUnusedNodesPass()(onnx_program.model)
        CommonSubexpressionEliminationPass()(onnx_program.model)
    for value in onnx_program.model.graph.initializers.values():
        if not value.is_graph_output():
            # Quantizers transpose some, and would find the shape before.
            value.type = value.shape = None
            value.metadata_props.clear()
    onnx_program.model.metadata_props[METADATA] = metadata.to_json()
    onnx_program.save(path)


def write_pt2(program: ExportedProgram, metadata: FileMetadata, path: Path) -> None:
    """Write the program of ``torch.export``."""
    content = io.BytesIO()  # torch aborts the process when it writes to a full disk itself
    with silence():
        torch.export.save(program, content, extra_files={METADATA: metadata.to_json()})
    path.write_bytes(content.getbuffer())


def load_pt2(path: Path) -> Callable[..., Outputs]:
    """Return the program of a file that :func:`write_pt2` has just written: it is a pickle."""
    with silence():
        return torch.export.load(path).module()


FORMATS: Dict[str, Format] = {
    'onnx': Format('.onnx', write_onnx, ExportedFile, ('onnx', 'onnxscript', 'onnxruntime')),
    'pt2': Format('.pt2', write_pt2, load_pt2),
}


def check_format(name: str) -> None:
    """Raise FormatError if a format is unknown, or a package that it needs is not installed."""
    if name not in FORMATS:
        raise FormatError(f'--format {name}: there are {", ".join(FORMATS)}')
    packages = FORMATS[name].packages
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise FormatError(f'--format {name} needs {package}: pip install {" ".join(packages)}')


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Disable logs and output in the block: exporters report details that users cannot change."""
    logging.disable(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(logging.NOTSET)
