"""Backbones that accept any attention of :mod:`mmlinattn.models.layers`."""

from .base import Backbone
from .core_tokens import CoreTokens
from .cvt import CvT
from .hierarchical import HierarchicalBackbone
from .hvittt import HViTTT
from .mavit import MAViT
from .mix_transformer import MixTransformer
from .mlla import MLLA
from .ravlt import RAVLT
from .swin import Swin
from .transformer_block import TransformerBlock
from .vil import ViL
from .vision_transformer import ViT

__all__ = [
    'MLLA', 'RAVLT', 'Backbone', 'CoreTokens', 'CvT', 'HViTTT', 'HierarchicalBackbone', 'MAViT',
    'MixTransformer', 'Swin', 'TransformerBlock', 'ViL', 'ViT',
]  # fmt: skip
