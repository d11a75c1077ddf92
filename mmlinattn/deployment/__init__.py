"""Export of complete models to ONNX, OpenVINO and AOTInductor."""

from .compare import sample_image
from .deployable import NotDeployable
from .exported_file import ExportedFile, FileError
from .exported_model import ExportedModel, is_exported, load_exported, use_exported
from .exporter import Export, ExportResult, ExportSettings, export
from .file_checks import check_classes
from .file_metadata import FileMetadata
from .formats import FORMATS, FormatError
from .timing import Timing, latency

__all__ = [
    'FORMATS',
    'Export',
    'ExportResult',
    'ExportSettings',
    'ExportedFile',
    'ExportedModel',
    'FileError',
    'FileMetadata',
    'FormatError',
    'NotDeployable',
    'Timing',
    'check_classes',
    'export',
    'is_exported',
    'latency',
    'load_exported',
    'sample_image',
    'use_exported',
]  # fmt: skip
