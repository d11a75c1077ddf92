"""Data sets."""

from .cifar import CIFAR100Binary
from .imagenet_v2 import ImageNetV2
from .instance_maps import InstanceMaps, LoadInstanceMap
from .samplers import AreaSampler

__all__ = ['AreaSampler', 'CIFAR100Binary', 'ImageNetV2', 'InstanceMaps', 'LoadInstanceMap']
