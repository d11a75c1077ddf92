"""Checkpoints: safe reading and writing, conversion of released weights, checks against models."""

from .checkpoint_cache import (
    CheckpointCache,
    check_complete,
    load_checkpoint,
    replace_mmengine_readers,
)
from .checkpoint_uri import package_weights
from .compare import LoadReport, check_fits, compare
from .convert import SOURCES, convert, detect_source, kind_of
from .errors import CheckpointError
from .finite import check_finite, constants, non_finite
from .read import damaged_part, load_state_dict, read_checkpoint
from .write import atomic_checkpoint, save_checkpoint

__all__ = [
    'SOURCES',
    'CheckpointCache',
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
    'replace_mmengine_readers',
    'save_checkpoint',
]
