"""Cases of the benchmarks: operators need torch alone, others import what they build."""

from . import backbones, layers, operators
from .registry import CASES, OURS, Baseline, Baselines, Case, Setup, case, map_shape

__all__ = [
    'CASES', 'OURS', 'Baseline', 'Baselines', 'Case', 'Setup', 'backbones', 'case', 'layers',
    'map_shape', 'operators',
]  # fmt: skip
