"""Attention operators: pure functions on tensors, without parameters or registry.

Requires only torch, and Triton for the kernels.
"""

from .additive import additive_attention
from .common.dispatch import BackendError, use_backend
from .common.feature_maps import feature_map
from .common.numerics import accumulation_dtype, no_autocast
from .common.packed import PackedShapes
from .common.rotary import Rotary, apply_rotary
from .learnt_features import adaptive_features
from .linear import linear_attention, mala_attention, rala_attention, unnormalised_attention
from .random_walk import nystrom_attention, random_walk_attention
from .ripple import ripple_attention, stick_breaking

__all__ = [
    'BackendError', 'PackedShapes', 'Rotary', 'accumulation_dtype', 'adaptive_features',
    'additive_attention', 'apply_rotary', 'feature_map', 'linear_attention', 'mala_attention',
    'no_autocast', 'nystrom_attention', 'rala_attention', 'random_walk_attention',
    'ripple_attention', 'stick_breaking', 'unnormalised_attention', 'use_backend',
]  # fmt: skip
