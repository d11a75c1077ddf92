"""The order in which shards are read: random, and yet block after block."""

from typing import Iterator, Optional

import numpy as np
from mmengine.dist import get_dist_info, sync_random_seed
from mmengine.registry import DATA_SAMPLERS
from torch.utils.data import Sampler

from .dataset import ShardDataset


@DATA_SAMPLERS.register_module()
class ShardSampler(Sampler):
    """Indices of a :class:`.dataset.ShardDataset`, in an order that reads each block once.

    The blocks come in random order, and of as many of them as the data set keeps at a time the
    samples are drawn at random. A process has an equal part of that order, and a data-loader
    worker, which gets each ``num_workers``-th batch, a part of it: no block is read by two but at
    the edges of their parts.

    The order is a function of the arguments, the epoch and the number of processes, so that a
    training resumes at its place as with MMEngine's samplers.

    Args:
        dataset: whose blocks are known.
        shuffle: False for the order of the shards.
        seed: of the order; by default one that all processes agree on.
        round_up: give all processes the same number of samples, by repeating one where the numbers
            do not divide, as MMEngine's ``DefaultSampler``.
        infinite: for training by iterations, epoch after epoch without an end and without a
            repeat; ``round_up`` is not used.
        batch_size, num_workers: those of the data loader. Others than it has cost reads, nothing
            else: a training that is resumed with another number of workers keeps its order where
            these stay.

    Raises:
        TypeError: another data set, or one that is wrapped.
        ValueError: numbers that are not positive; no samples.

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
        # No worker is the process itself.
        numbers = dict(batch_size=batch_size, num_workers=num_workers or 1)
        for name, value in numbers.items():
            if type(value) is not int or value < 1:
                raise ValueError(f'{name} must be a positive integer, got {value!r}')
        self.block_of = dataset.block_numbers()
        if not len(self.block_of):
            raise ValueError(f'dataset: {dataset.ann_file} has no sample')
        self.rank, self.world_size = get_dist_info()
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = sync_random_seed() if seed is None else seed
        self.infinite = infinite
        self.round_up = round_up and not infinite
        self.batch_size, self.streams = numbers.values()
        self.epoch = 0
        self.start = 0
        total, each = len(self.block_of), len(self.block_of) // self.world_size
        more = total % self.world_size
        self.first = self.rank * each + min(self.rank, more)
        self.own = each + (self.rank < more)
        self.num_samples = self.own + (self.round_up and 0 < more <= self.rank)

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
        """Of training by epochs; one by iterations counts them itself."""
        self.epoch = epoch

    def skip(self, num_samples: int) -> None:
        """Make an infinite order start behind so many samples of this process."""
        if not self.infinite:
            raise ValueError('skip: only with infinite=True; training by epochs skips by itself')
        self.start = num_samples

    def order(self, epoch: int) -> list:
        """The indices of this process in an epoch."""
        rng = np.random.default_rng((self.seed, epoch))
        blocks, block_of = np.unique(self.block_of, return_inverse=True)
        place = rng.permutation(len(blocks)) if self.shuffle else np.arange(len(blocks))
        # All samples, block after block, and what decides inside of a window of some blocks.
        order = np.argsort(place[block_of], kind='stable')
        window = place[block_of][order] // self.dataset.blocks
        key = rng.random(len(order)) if self.shuffle else np.arange(len(order))
        own = slice(self.first, self.first + self.own)
        found = np.empty(self.own, np.int64)
        stream = self._stream_of(epoch)
        begin = own.start
        for s in range(self.streams):
            places = np.flatnonzero(stream == s)
            part = slice(begin, begin + len(places))
            found[places] = order[part][np.lexsort((key[part], window[part]))]
            begin = part.stop
        # At the end, where MMEngine cuts it off behind an evaluation.
        repeated = (found if self.own else order)[: self.num_samples - self.own]
        return [*found.tolist(), *repeated.tolist()]

    def _stream_of(self, epoch: int) -> np.ndarray:
        """(own,) int64: the worker that each place of this process in an epoch is loaded by."""
        places = np.arange(self.own) + (epoch * self.own if self.infinite else 0)
        return places // self.batch_size % self.streams
