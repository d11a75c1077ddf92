"""Metrics that the frameworks lack: outlines of segments, and quality of reconstructed images."""

from .boundary_iou import BoundaryIoUMetric, boundary_of
from .frechet_distance import FrechetDistance, frechet_distance
from .reconstruction_metric import ReconstructionMetric, psnr, ssim

__all__ = [
    'BoundaryIoUMetric', 'FrechetDistance', 'ReconstructionMetric', 'boundary_of',
    'frechet_distance', 'psnr', 'ssim',
]  # fmt: skip
