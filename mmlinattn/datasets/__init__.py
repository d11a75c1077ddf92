"""Data sets."""

from .cifar import CIFAR100Binary
from .imagenet_v2 import ImageNetV2
from .video import VideoList

__all__ = [
    'CIFAR100Binary',
    'ImageNetV2',
    'VideoList',
]
