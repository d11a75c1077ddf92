"""Sampler that shuffles shards while reading them block by block."""

from typing import Iterator, Optional

import numpy as np
from mmengine.dist import get_dist_info, sync_random_seed
from mmengine.registry import DATA_SAMPLERS
from torch.utils.data import Sampler

from ...utils import check_integer
from .dataset import ShardDataset


@DATA_SAMPLERS.register_module()
class ShardSampler(Sampler):
    """Sampler of a :class:`.dataset.ShardDataset` whose order reads each block once.

    The blocks are in random order. Samples are shuffled within as many blocks as the data set
    caches. Each process has an equal part of that order, and each data-loader worker a part of
    that: it loads every ``num_workers``-th batch. Only blocks at the edges of parts are read twice.

    The order depends only on the arguments, the epoch and the number of processes, so training
    resumes at the same position as with MMEngine's samplers.

    Args:
        dataset: the data set.
        shuffle: False for the order of the shards.
        seed: random seed of the order; by default one that is synchronised between processes.
        round_up: give all processes the same number of samples. If the numbers do not divide, a
            sample is repeated, as in MMEngine's ``DefaultSampler``.
        infinite: repeat epochs endlessly, for training by iterations, without repeating samples
            within an epoch; ``round_up`` is ignored.
        batch_size, num_workers: those of the data loader. Other values only cost more reads. To
            keep the order when resuming with another number of workers, keep these values.

    Raises:
        TypeError: the data set is not a ShardDataset, or is wrapped.
        ValueError: a number is not positive, or there are no samples.

    Example::

        dict(type='ShardSampler', shuffle=True, batch_size=8, num_workers=4)
    """

    def __init__(
        self,
        dataset: ShardDataset,
        shuffle: bool = True,
        seed: Optional[int] = None,
        round_up: bool = True,
        infinite: bool = False,
        batch_size: int = 1,
        num_workers: int = 1,
    ) -> None:
        if not isinstance(dataset, ShardDataset):
            raise TypeError(f'dataset must be a ShardDataset, got {type(dataset).__name__}')
        # With 0 workers the process itself loads all batches.
        num_workers = check_integer('num_workers', num_workers or 1)
        batch_size = check_integer('batch_size', batch_size)
        self.block_of = dataset.block_numbers()
        if not len(self.block_of):
            raise ValueError(f'dataset: {dataset.ann_file} has no sample')
        self.rank, self.world_size = get_dist_info()
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = sync_random_seed() if seed is None else seed
        self.infinite = infinite
        self.round_up = round_up and not infinite
        self.batch_size, self.num_workers = batch_size, num_workers
        self.epoch = 0
        self.start = 0
        total, each = len(self.block_of), len(self.block_of) // self.world_size
        remainder = total % self.world_size
        self.first = self.rank * each + min(self.rank, remainder)
        self.own = each + (self.rank < remainder)
        self.num_samples = self.own + (self.round_up and 0 < remainder <= self.rank)

    def __iter__(self) -> Iterator[int]:
        if not self.infinite:
            yield from self.order(self.epoch)
            return
        if not self.own:
            raise ValueError(f'dataset: no sample for process {self.rank} of {self.world_size}')
        epoch, skipped = divmod(self.start, self.own)
        while True:
            yield from self.order(epoch)[skipped:]
            epoch, skipped = epoch + 1, 0

    def __len__(self) -> int:
        return self.num_samples

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch for training by epochs; an infinite sampler counts epochs itself."""
        self.epoch = epoch

    def skip(self, num_samples: int) -> None:
        """Skip this many samples of this process at the start of an infinite order."""
        if not self.infinite:
            raise ValueError('skip: only with infinite=True; training by epochs skips by itself')
        self.start = num_samples

    def order(self, epoch: int) -> list:
        """Return the indices of this process in an epoch."""
        rng = np.random.default_rng((self.seed, epoch))
        blocks, block_of = np.unique(self.block_of, return_inverse=True)
        place = rng.permutation(len(blocks)) if self.shuffle else np.arange(len(blocks))
        # All samples block by block, and a random key that orders them within a window of blocks.
        order = np.argsort(place[block_of], kind='stable')
        window = place[block_of][order] // self.dataset.blocks
        key = rng.random(len(order)) if self.shuffle else np.arange(len(order))
        own = slice(self.first, self.first + self.own)
        indices = np.empty(self.own, np.int64)
        worker = self._worker_of_samples(epoch)
        begin = own.start
        for w in range(self.num_workers):
            places = np.flatnonzero(worker == w)
            part = slice(begin, begin + len(places))
            indices[places] = order[part][np.lexsort((key[part], window[part]))]
            begin = part.stop
        # Repeated samples are at the end, where MMEngine removes them after an evaluation.
        repeated = (indices if self.own else order)[: self.num_samples - self.own]
        return [*indices.tolist(), *repeated.tolist()]

    def _worker_of_samples(self, epoch: int) -> np.ndarray:
        """Return the worker that loads each sample of this process in an epoch, (own,) int64."""
        places = np.arange(self.own) + (epoch * self.own if self.infinite else 0)
        return places // self.batch_size % self.num_workers
