"""Parameters and multiply-accumulates of models."""

from .complexity import Complexity, Cost, analyse

__all__ = ['Complexity', 'Cost', 'analyse']
