"""The mathematics: pure functions on tensors, no parameters, no registry; needs torch alone."""

from .adaptive import adaptive_features
from .additive import additive_attention
from .common.dispatch import BackendError, use_backend
from .common.feature_maps import feature_map
from .common.rotary import Rotary, apply_rotary
from .epilogue import local_gate
from .linear import linear_attention, unnormalised_attention
from .nystrom import nystrom_attention
from .rala import rala_attention
from .anchors import random_walk_attention
from .ripple import ripple_attention, stick_breaking

__all__ = [
    'BackendError',
    'Rotary',
    'adaptive_features',
    'additive_attention',
    'apply_rotary',
    'feature_map',
    'linear_attention',
    'local_gate',
    'nystrom_attention',
    'rala_attention',
    'random_walk_attention',
    'ripple_attention',
    'stick_breaking',
    'unnormalised_attention',
    'use_backend',
]
