"""Checkpoints: safe reading and writing, conversion of released weights, checks against models."""

from .checkpoint_uri import package_weights
from .compare import (
    check_complete,
    check_fits,
    compare,
    load_checkpoint,
    non_finite,
)
from .convert import SOURCES, convert, detect_source, kind_of
from .errors import CheckpointError
from .read import load_state_dict, read_checkpoint
from .write import save_checkpoint

__all__ = [
    'SOURCES',
    'CheckpointError',
    'check_complete',
    'check_fits',
    'compare',
    'convert',
    'detect_source',
    'kind_of',
    'load_checkpoint',
    'load_state_dict',
    'non_finite',
    'package_weights',
    'read_checkpoint',
    'save_checkpoint',
]
