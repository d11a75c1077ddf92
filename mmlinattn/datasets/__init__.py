"""Data sets and file backends."""

from .cifar import CIFAR100Binary
from .file_backends import HTTPFileBackend, S3FileBackend
from .imagenet_v2 import ImageNetV2
from .shards import ShardDataset, ShardSampler

__all__ = [
    'CIFAR100Binary',
    'HTTPFileBackend',
    'ImageNetV2',
    'S3FileBackend',
    'ShardDataset',
    'ShardSampler',
]
