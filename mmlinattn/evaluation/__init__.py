"""Metrics that the frameworks lack: quality of reconstructed images."""

from .frechet_distance import FrechetDistance, frechet_distance
from .reconstruction_metric import ReconstructionMetric, psnr, ssim

__all__ = ['FrechetDistance', 'ReconstructionMetric', 'frechet_distance', 'psnr', 'ssim']
