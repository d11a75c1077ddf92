"""Attention layers, backbones, necks, detectors, generative models and models of videos."""

from . import backbones, detectors, generation, layers, necks, video

__all__ = ['backbones', 'detectors', 'generation', 'layers', 'necks', 'video']
