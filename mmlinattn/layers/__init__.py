"""Attention layers under one contract, and the layers around them."""

from .additive import AdditiveAttention
from .base import BaseAttention, TokenMap, map_to_tokens, tokens_to_map
from .build import AttnCfg, attention_cfgs, build_attention, init_layers, registered
from .conv_projection import ConvProjectionAttention
from .efficient_softmax import EfficientSoftmaxAttention
from .feature_maps import FeatureMap, build_feature_map
from .ffn import MLP, ConvFFN, MixFFN
from .linear import LinearAttention
from .longformer import VisionLongformerAttention
from .rala import RALA
from .random_walk import RWGKA, RWGKP
from .ripple import RippleAttention
from .softmax import SoftmaxAttention, softmax_attention
from .window import WindowAttention

__all__ = [
    'MLP',
    'RALA',
    'RWGKA',
    'RWGKP',
    'AdditiveAttention',
    'AttnCfg',
    'BaseAttention',
    'ConvFFN',
    'ConvProjectionAttention',
    'EfficientSoftmaxAttention',
    'FeatureMap',
    'LinearAttention',
    'MixFFN',
    'RippleAttention',
    'SoftmaxAttention',
    'TokenMap',
    'VisionLongformerAttention',
    'WindowAttention',
    'attention_cfgs',
    'build_attention',
    'build_feature_map',
    'init_layers',
    'map_to_tokens',
    'registered',
    'softmax_attention',
    'tokens_to_map',
]
