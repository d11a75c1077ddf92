"""Whole models as files: ONNX, OpenVINO, AOTInductor."""

from .compare import sample_image
from .exporter import Export, Settings, Written, export
from .file_checks import check_classes
from .files import ExportedFile, FileError
from .formats import FORMATS, FormatError
from .metadata import FileMetadata
from .models import NotDeployable
from .scoring import ExportedModel, is_exported, use_exported
from .timing import Timing, latency

__all__ = [
    'FORMATS', 'Export', 'ExportedFile', 'ExportedModel', 'FileError', 'FileMetadata',
    'FormatError', 'NotDeployable', 'Settings', 'Timing', 'Written', 'check_classes',
    'export', 'is_exported', 'latency', 'sample_image', 'use_exported',
]  # fmt: skip
