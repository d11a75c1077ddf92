"""Data sets in a few large tar files (named as in WebDataset), for stores with high latency."""

from .dataset import ShardDataset
from .sampler import ShardSampler
from .tar_member import DamagedSample, MemberStore
from .write import write_shards

__all__ = ['DamagedSample', 'MemberStore', 'ShardDataset', 'ShardSampler', 'write_shards']
