"""Attention layers under one contract, and the layers around them."""

from .base import BaseAttention, build_attention, map_to_tokens, tokens_to_map
from .ffn import ConvFFN
from .rala import RALA
from .softmax import SoftmaxAttention, softmax_attention

__all__ = [
    'RALA',
    'BaseAttention',
    'ConvFFN',
    'SoftmaxAttention',
    'build_attention',
    'map_to_tokens',
    'softmax_attention',
    'tokens_to_map',
]
