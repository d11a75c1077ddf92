"""Checkpoints: safe reading and writing, and checks against models.

:mod:`.converters` converts released weights.
"""

from .checkpoint_uri import package_weights
from .compare import check_complete, check_fits, compare, load_checkpoint, non_finite
from .errors import CheckpointError
from .read import load_state_dict, read_checkpoint
from .write import save_checkpoint

__all__ = [
    'CheckpointError', 'check_complete', 'check_fits', 'compare', 'load_checkpoint',
    'load_state_dict', 'non_finite', 'package_weights', 'read_checkpoint', 'save_checkpoint',
]  # fmt: skip
