"""Hosts: backbones that take any attention of :mod:`mmlinattn.layers`."""

from .ravlt import RAVLT

__all__ = ['RAVLT']
