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
from .consolidate import consolidate
from .convert import SOURCES, convert, detect_source, kind_of
from .errors import CheckpointError
from .read import damaged_part, load_state_dict, read_checkpoint
from .sharded import (
    is_sharded,
    load_shards,
    remove_lost_shards,
    remove_shards,
    save_sharded,
    tensors_of,
)
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
    'consolidate',
    'constants',
    'convert',
    'damaged_part',
    'detect_source',
    'is_sharded',
    'kind_of',
    'load_checkpoint',
    'load_shards',
    'load_state_dict',
    'non_finite',
    'package_weights',
    'read_checkpoint',
    'remove_lost_shards',
    'remove_shards',
    'save_checkpoint',
    'save_sharded',
    'tensors_of',
]
