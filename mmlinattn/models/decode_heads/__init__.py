"""Decode heads of segmentors, which need MMSegmentation.

Configs name them by their full path, so that the other configs work without MMSegmentation:
``type='mmlinattn.models.decode_heads.AllMLPHead'``.
"""

from .all_mlp_head import AllMLPHead
from .segformer_head import LevelwiseSegformerHead

__all__ = ['AllMLPHead', 'LevelwiseSegformerHead']
