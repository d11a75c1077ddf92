"""Checkpoints: safe reading and writing, conversion of released weights, checks against models."""

from .checkpoint_uri import package_weights
from .compare import (
    LoadReport,
    check_complete,
    check_finite,
    check_fits,
    compare,
    constants,
    load_checkpoint,
    non_finite,
)
from .convert import SOURCES, convert, detect_source, kind_of
from .errors import CheckpointError
from .read import damaged_part, load_state_dict, read_checkpoint
from .write import atomic_checkpoint, save_checkpoint

__all__ = [
    'SOURCES',
    'CheckpointError',
    'LoadReport',
    'atomic_checkpoint',
    'check_complete',
    'check_finite',
    'check_fits',
    'compare',
    'constants',
    'convert',
    'damaged_part',
    'detect_source',
    'kind_of',
    'load_checkpoint',
    'load_state_dict',
    'non_finite',
    'package_weights',
    'read_checkpoint',
    'save_checkpoint',
]
