"""Data sets and file backends."""

from .cifar import CIFAR100Binary
from .file_backends import HTTPStore, S3Store
from .imagenet_v2 import ImageNetV2
from .shards import ShardDataset, ShardSampler

__all__ = ['CIFAR100Binary', 'HTTPStore', 'ImageNetV2', 'S3Store', 'ShardDataset', 'ShardSampler']
