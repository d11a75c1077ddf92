"""Data sets and file backends."""

from .cifar import CIFAR100Binary
from .file_backends import HTTPStore, S3Store
from .shards import ShardDataset, ShardSampler

__all__ = ['CIFAR100Binary', 'HTTPStore', 'S3Store', 'ShardDataset', 'ShardSampler']
