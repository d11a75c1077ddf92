"""Data sets as a few large tar files (WebDataset's naming), for stores that are slow to ask."""

from .dataset import ShardDataset
from .sampler import ShardSampler
from .tar_member import DamagedSample, MemberStore
from .write import write_shards

__all__ = ['DamagedSample', 'MemberStore', 'ShardDataset', 'ShardSampler', 'write_shards']
