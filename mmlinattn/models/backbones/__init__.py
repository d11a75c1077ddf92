"""Backbones that accept any attention of :mod:`mmlinattn.models.layers`."""

from .base import Backbone, HierarchicalBackbone
from .cvt import CvT
from .mix_transformer import MixTransformer
from .ravlt import RAVLT
from .swin import Swin
from .vil import ViL
from .vision_transformer import ViT

__all__ = [
    'RAVLT',
    'Backbone',
    'CvT',
    'HierarchicalBackbone',
    'MixTransformer',
    'Swin',
    'ViL',
    'ViT',
]
