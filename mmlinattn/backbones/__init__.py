"""Hosts: backbones that take any attention of :mod:`mmlinattn.layers`."""

from .base import HierarchicalBackbone
from .mix_transformer import MixTransformer
from .ravlt import RAVLT

__all__ = ['RAVLT', 'HierarchicalBackbone', 'MixTransformer']
