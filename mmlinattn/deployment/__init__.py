"""Export of complete models to ONNX and torch.export."""

from .compare import sample_image
from .deployable import NotDeployable
from .exported_file import ExportedFile, FileError, is_exported
from .exported_model import ExportedModel, check_classes, load_exported, use_exported
from .exporter import Export, ExportResult, ExportSettings, export
from .file_metadata import FileMetadata
from .formats import FORMATS, FormatError

__all__ = [
    'FORMATS', 'Export', 'ExportResult', 'ExportSettings', 'ExportedFile', 'ExportedModel',
    'FileError', 'FileMetadata', 'FormatError', 'NotDeployable', 'check_classes', 'export',
    'is_exported', 'load_exported', 'sample_image', 'use_exported',
]  # fmt: skip
