"""Whole models as files: ONNX, OpenVINO, AOTInductor, ExecuTorch."""

from .export import Export, Settings, Written, export, sample_image
from .files import ExportedFile, FileError
from .formats import FORMATS, FormatError
from .models import NotDeployable
from .scoring import ExportedModel, is_exported, use_exported

__all__ = [
    'FORMATS', 'Export', 'ExportedFile', 'ExportedModel', 'FileError', 'FormatError',
    'NotDeployable', 'Settings', 'Written', 'export', 'is_exported', 'sample_image',
    'use_exported',
]  # fmt: skip
