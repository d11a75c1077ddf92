"""Data sets of mmlinattn."""

from .cifar import CIFAR100Binary
from .shards import ShardDataset, ShardSampler
from .file_backends import HTTPStore, S3Store

__all__ = ['CIFAR100Binary', 'HTTPStore', 'S3Store', 'ShardDataset', 'ShardSampler']
