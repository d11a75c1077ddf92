"""Attention layers with one interface, feature maps, positions and feed-forward layers."""

from .additive import AdditiveAttention
from .attention_info import AttentionInfo
from .base import BaseAttention, TokenLayout, map_to_tokens, tokens_to_map
from .biased_softmax import BiasedSoftmaxAttention
from .build import AttnCfg, build_attention, expand_attn_cfg, init_layers, registered_subclasses
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
from .relative_position_bias import RelativePositionBias
from .ripple import RippleAttention
from .slinear import SlinearAttention
from .softmax import SoftmaxAttention, softmax_attention
from .spatial_reduction import SpatialReductionAttention
from .vision_longformer import VisionLongformerAttention
from .window import WindowAttention

__all__ = [
    'MLP',
    'RALA',
    'RWGKA',
    'RWGKP',
    'AdditiveAttention',
    'AttentionInfo',
    'AttnCfg',
    'BaseAttention',
    'BiasedSoftmaxAttention',
    'ConvFFN',
    'ConvProjectionAttention',
    'EfficientAttention',
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
    'RelativePositionBias',
    'RippleAttention',
    'SlinearAttention',
    'SoftmaxAttention',
    'SpatialReductionAttention',
    'TokenLayout',
    'VisionLongformerAttention',
    'WindowAttention',
    'add_depthwise',
    'build_attention',
    'build_feature_map',
    'build_position',
    'expand_attn_cfg',
    'init_layers',
    'map_to_tokens',
    'registered_subclasses',
    'softmax_attention',
    'tokens_to_map',
]
