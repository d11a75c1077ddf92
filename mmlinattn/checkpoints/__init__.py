"""Checkpoints: safe reading and writing, conversion of released weights, checks against models."""

from .checkpoint_cache import CheckpointStore, check_whole, load_checkpoint, serve_mmengine
from .compare import Report, check_fits, compare
from .consolidate import consolidate
from .convert import SOURCES, convert, kind_of
from .errors import CheckpointError
from .finite import check_finite, constants, non_finite
from .read import damaged_part, load_state_dict, read_checkpoint
from .sharded import (
    is_sharded,
    load_shards,
    remove_lost_shards,
    remove_shards,
    save_sharded,
    tensors_of,
)
from .write import save_checkpoint, whole_checkpoint

__all__ = [
    'SOURCES',
    'CheckpointError',
    'CheckpointStore',
    'Report',
    'check_finite',
    'check_fits',
    'check_whole',
    'compare',
    'consolidate',
    'constants',
    'convert',
    'damaged_part',
    'is_sharded',
    'kind_of',
    'load_checkpoint',
    'load_shards',
    'load_state_dict',
    'non_finite',
    'read_checkpoint',
    'remove_lost_shards',
    'remove_shards',
    'save_checkpoint',
    'save_sharded',
    'serve_mmengine',
    'tensors_of',
    'whole_checkpoint',
]
