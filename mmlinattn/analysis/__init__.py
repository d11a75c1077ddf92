"""What models cost."""

from .complexity import Complexity, Cost, analyse

__all__ = ['Complexity', 'Cost', 'analyse']
