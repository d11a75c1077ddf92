"""Attention layers under one contract, and the layers around them."""

from .base import BaseAttention, build_attention, map_to_tokens, tokens_to_map
from .feature_maps import FeatureMap, build_feature_map
from .ffn import ConvFFN
from .linear import LinearAttention
from .rala import RALA
from .ripple import RippleAttention
from .softmax import SoftmaxAttention, softmax_attention

__all__ = [
    'RALA',
    'BaseAttention',
    'ConvFFN',
    'FeatureMap',
    'LinearAttention',
    'RippleAttention',
    'SoftmaxAttention',
    'build_attention',
    'build_feature_map',
    'map_to_tokens',
    'softmax_attention',
    'tokens_to_map',
]
