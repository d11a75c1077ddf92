"""Checkpoint files: safe reading and writing, key maps from released weights, fit to a model."""

from .compare import Report, check_fits, compare
from .convert import SOURCES, convert, kind_of
from .errors import CheckpointError
from .read import damaged_part, load_state_dict, read_checkpoint
from .store import CheckpointStore, check_whole, load_checkpoint, serve_mmengine
from .write import save_checkpoint, whole_file

__all__ = [
    'SOURCES',
    'CheckpointError',
    'CheckpointStore',
    'Report',
    'check_fits',
    'check_whole',
    'compare',
    'convert',
    'damaged_part',
    'kind_of',
    'load_checkpoint',
    'load_state_dict',
    'read_checkpoint',
    'save_checkpoint',
    'serve_mmengine',
    'whole_file',
]
