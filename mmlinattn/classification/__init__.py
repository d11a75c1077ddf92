"""What the classifiers need besides a backbone."""

from .ravlt_neck import RAVLTNeck

__all__ = ['RAVLTNeck']
