"""Attention layers under one contract, and the layers around them."""

from .additive import AdditiveAttention
from .attention_info import AttentionCard
from .base import BaseAttention, TokenMap, map_to_tokens, tokens_to_map
from .biased_softmax import RelativeSoftmaxAttention
from .build import AttnCfg, attention_cfgs, build_attention, init_layers, registered
from .conv_projection import ConvProjectionAttention
from .depthwise_conv import add_depthwise
from .efficient_attention import EfficientAttention
from .enhanced_linear import EnhancedLinearAttention
from .feature_maps import FeatureMap, build_feature_map
from .ffn import MLP, ConvFFN, MixFFN
from .focused_linear import FocusedLinearAttention
from .gated_positional import GatedPositionalAttention
from .hydra import HydraAttention
from .linear import LinearAttention
from .linear_angular import LinearAngularAttention
from .non_local import NonLocalBlock, NonLocalNeck
from .nystrom import NystromAttention
from .positions import LinearPosition, build_position
from .rala import RALA
from .random_walk import RWGKA, RWGKP
from .relative_position_bias import RelativeBias
from .ripple import RippleAttention
from .softmax import SoftmaxAttention, softmax_attention
from .spatial_reduction import EfficientSoftmaxAttention
from .vision_longformer import VisionLongformerAttention
from .window import WindowAttention

__all__ = [
    'MLP',
    'RALA',
    'RWGKA',
    'RWGKP',
    'AdditiveAttention',
    'AttentionCard',
    'AttnCfg',
    'BaseAttention',
    'ConvFFN',
    'ConvProjectionAttention',
    'EfficientAttention',
    'EfficientSoftmaxAttention',
    'EnhancedLinearAttention',
    'FeatureMap',
    'FocusedLinearAttention',
    'GatedPositionalAttention',
    'HydraAttention',
    'LinearAngularAttention',
    'LinearAttention',
    'LinearPosition',
    'MixFFN',
    'NonLocalBlock',
    'NonLocalNeck',
    'NystromAttention',
    'RelativeBias',
    'RelativeSoftmaxAttention',
    'RippleAttention',
    'SoftmaxAttention',
    'TokenMap',
    'VisionLongformerAttention',
    'WindowAttention',
    'add_depthwise',
    'attention_cfgs',
    'build_attention',
    'build_feature_map',
    'build_position',
    'init_layers',
    'map_to_tokens',
    'registered',
    'softmax_attention',
    'tokens_to_map',
]
