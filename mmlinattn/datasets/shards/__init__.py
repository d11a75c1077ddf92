"""Data sets in a few large tar files (named as in WebDataset), for stores with high latency."""

from ..file_backends import DamagedSample, TarMemberBackend
from .dataset import ShardDataset
from .sampler import ShardSampler
from .write import write_shards

__all__ = ['DamagedSample', 'ShardDataset', 'ShardSampler', 'TarMemberBackend', 'write_shards']
