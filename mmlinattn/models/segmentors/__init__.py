"""Segmentors, which need MMSegmentation and MMDetection.

Configs name them by their full path, so that the other configs work without these packages:
``type='mmlinattn.models.segmentors.EoMT'``.
"""

from .eomt import EoMT
from .eomt_head import EoMTHead

__all__ = ['EoMT', 'EoMTHead']
