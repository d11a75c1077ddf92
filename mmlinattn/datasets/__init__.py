"""Data sets of mmlinattn."""

from .cifar import CIFAR100Binary

__all__ = ['CIFAR100Binary']
