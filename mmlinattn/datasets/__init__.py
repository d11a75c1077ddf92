"""Data sets."""

from .cifar import CIFAR100Binary
from .imagenet_v2 import ImageNetV2

__all__ = [
    'CIFAR100Binary',
    'ImageNetV2',
]
