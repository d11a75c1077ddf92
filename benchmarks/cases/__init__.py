"""Cases of the benchmarks: operators need torch alone, others import what they build."""

from . import backbones, layers, operators, packed
from .registry import CASES, KINDS, LAYOUTS, OURS, Baseline, Baselines, Case, Setup, case, map_shape

__all__ = [
    'CASES', 'KINDS', 'LAYOUTS', 'OURS', 'Baseline', 'Baselines', 'Case', 'Setup', 'backbones',
    'case', 'layers', 'map_shape', 'operators', 'packed',
]  # fmt: skip
