"""Attention layers with one interface, feature maps, positions and feed-forward layers."""

from .additive import AdditiveAttention
from .agent import AgentAttention
from .base import BaseAttention, TokenLayout
from .biased_softmax import BiasedSoftmaxAttention
from .build import AttnCfg, AttnCfgs, build_attention, init_layers, registered_subclasses
from .conv_projection import ConvProjectionAttention
from .core import CoreAttention, CoreCoordinates
from .cpu_linear import CPULinear, optimize_for_cpu
from .cross_attention import LinearCrossAttention
from .depthwise_conv import add_depthwise
from .efficient_attention import EfficientAttention
from .enhanced_linear import EnhancedLinearAttention
from .feature_maps import FeatureMap, build_feature_map
from .ffn import MLP, ConvFFN, MixFFN, ResidualMixFFN, SwiGLU
from .focused_linear import FocusedLinearAttention
from .gated_positional import GatedPositionalAttention
from .hybrid import expand_attn_cfg, is_hybrid
from .hydra import HydraAttention
from .inline import InLineAttention
from .linear import LinearAttention
from .linear_angular import LinearAngularAttention
from .mala import MALA
from .mlla import MLLAAttention
from .nystrom import NystromAttention
from .polaformer import PolaFormerAttention
from .positions import LinearPosition, build_position
from .rala import RALA
from .random_walk import RWGKA, RWGKP, RandomWalkAttention, SlinearAttention
from .relative_position_bias import RelativePositionBias
from .residual import add_branch
from .ripple import RippleAttention
from .softmax import SoftmaxAttention, softmax_attention
from .spatial_reduction import SpatialReductionAttention
from .token_layout import map_to_tokens, tokens_to_map
from .ttt import TTTAttention
from .vision_longformer import VisionLongformerAttention
from .vssd import VSSDAttention
from .window import WindowAttention

__all__ = [
    'MALA', 'MLP', 'RALA', 'RWGKA', 'RWGKP', 'AdditiveAttention', 'AgentAttention', 'AttnCfg',
    'AttnCfgs', 'BaseAttention', 'BiasedSoftmaxAttention', 'CPULinear', 'ConvFFN',
    'ConvProjectionAttention', 'CoreAttention', 'CoreCoordinates', 'EfficientAttention',
    'EnhancedLinearAttention', 'FeatureMap', 'FocusedLinearAttention', 'GatedPositionalAttention',
    'HydraAttention', 'InLineAttention', 'LinearAngularAttention', 'LinearAttention',
    'LinearCrossAttention', 'LinearPosition', 'MLLAAttention', 'MixFFN', 'NystromAttention',
    'PolaFormerAttention', 'RandomWalkAttention', 'RelativePositionBias', 'ResidualMixFFN',
    'RippleAttention', 'SlinearAttention', 'SoftmaxAttention', 'SpatialReductionAttention',
    'SwiGLU', 'TTTAttention', 'TokenLayout', 'VSSDAttention', 'VisionLongformerAttention',
    'WindowAttention', 'add_branch', 'add_depthwise', 'build_attention', 'build_feature_map',
    'build_position', 'expand_attn_cfg', 'init_layers', 'is_hybrid', 'map_to_tokens',
    'optimize_for_cpu', 'registered_subclasses', 'softmax_attention', 'tokens_to_map',
]  # fmt: skip
