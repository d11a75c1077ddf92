"""Checkpoint files: safe reading and writing, key maps from released weights, fit to a model."""

from .compare import Report, check_fits, compare
from .convert import SOURCES, convert, kind_of
from .errors import CheckpointError
from .io import load_state_dict, save_checkpoint

__all__ = [
    'SOURCES',
    'CheckpointError',
    'Report',
    'check_fits',
    'compare',
    'convert',
    'kind_of',
    'load_state_dict',
    'save_checkpoint',
]
