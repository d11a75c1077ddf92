"""Hosts: backbones that take any attention of :mod:`mmlinattn.layers`."""

from .base import Backbone, HierarchicalBackbone
from .cvt import CvT
from .mix_transformer import MixTransformer
from .ravlt import RAVLT
from .simple_feature_pyramid import SimpleFeaturePyramid
from .swin import Swin
from .vil import ViL
from .vision_transformer import ViT

__all__ = [
    'RAVLT',
    'Backbone',
    'CvT',
    'HierarchicalBackbone',
    'MixTransformer',
    'SimpleFeaturePyramid',
    'Swin',
    'ViL',
    'ViT',
]
