"""Attention layers under one contract, and the layers around them."""

from .additive import AdditiveAttention
from .base import BaseAttention, build_attention, map_to_tokens, tokens_to_map
from .efficient_softmax import EfficientSoftmaxAttention
from .ffn import ConvFFN, MixFFN
from .rala import RALA
from .random_walk import RWGKA, RWGKP
from .softmax import SoftmaxAttention, softmax_attention

__all__ = [
    'RALA',
    'RWGKA',
    'RWGKP',
    'AdditiveAttention',
    'BaseAttention',
    'ConvFFN',
    'EfficientSoftmaxAttention',
    'MixFFN',
    'SoftmaxAttention',
    'build_attention',
    'map_to_tokens',
    'softmax_attention',
    'tokens_to_map',
]
