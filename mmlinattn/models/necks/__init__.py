"""Necks between a backbone and its heads."""

from .ravlt_neck import RAVLTNeck
from .simple_feature_pyramid import SimpleFeaturePyramid

__all__ = ['RAVLTNeck', 'SimpleFeaturePyramid']
