"""What models cost."""

from .complexity import Complexity, Cost, analyse, build_model

__all__ = ['Complexity', 'Cost', 'analyse', 'build_model']
