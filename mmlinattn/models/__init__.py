"""Attention layers, backbones, necks and detectors."""

from . import backbones, detectors, layers, necks

__all__ = ['backbones', 'detectors', 'layers', 'necks']
