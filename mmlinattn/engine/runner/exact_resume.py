"""Exact resume: interrupted training ends with the weights of an uninterrupted run."""

import random
from typing import Any, Generator, Iterator, List

import numpy as np
import torch
from mmengine.dist import get_rank, get_world_size
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

_MODEL, _DATA = 0, 1


def seed_everything(*key: int) -> None:
    """Seed Python, NumPy and torch (every device) from non-negative integers.

    Example:
        >>> seed_everything(0, 3); a = torch.rand(2)
        >>> seed_everything(0, 3); bool((a == torch.rand(2)).all())
        True
    """
    words = np.random.SeedSequence(key).generate_state(4)
    random.seed(int(words[0]))
    np.random.seed(words[1])
    torch.manual_seed(int(words[2]) << 32 | int(words[3]))


class _Index(int):
    """Sample index with the random key of its position in the stream of samples."""

    key: tuple

    def __new__(cls, index: int, key: tuple) -> '_Index':
        self = super().__new__(cls, index)
        self.key = key
        return self

    def __reduce__(self):
        return _Index, (int(self), self.key)


class _KeyedSampler:
    """Sampler wrapper whose indices carry (seed, epoch, position over all processes)."""

    def __init__(self, sampler: Any, seed: int) -> None:
        self.sampler = sampler
        self.seed = seed
        self.skipped = 0
        if hasattr(sampler, 'skip'):
            # MMEngine calls skip on the sampler itself to fast-forward a resumed run.
            self._skip, sampler.skip = sampler.skip, self._counted_skip

    def __iter__(self) -> Iterator[_Index]:
        epoch = getattr(self.sampler, 'epoch', 0)
        start, self.skipped = self.skipped, 0
        for position, index in enumerate(self.sampler, start):
            place = position * get_world_size() + get_rank()
            yield _Index(index, (self.seed, _DATA, epoch, place))

    def __len__(self) -> int:
        return len(self.sampler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__['sampler'], name)

    def _counted_skip(self, num_samples: int) -> None:
        self._skip(num_samples)
        self.skipped = num_samples


class _KeyedFetch:
    """Loader of the samples of a batch that seeds the transforms of each from its own key."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __call__(self, indices: List[_Index]) -> list:
        samples = []
        for index in indices:
            seed_everything(*index.key)
            samples.append(self.dataset[int(index)])
        return samples


@HOOKS.register_module()
class ExactResumeHook(Hook):
    """Hook that makes every random number of training a function of the seed and the iteration.

    Dropout, stochastic depth and random samplers are seeded by (seed, rank, iteration). Data
    augmentation is seeded by (seed, epoch, position in the stream of samples). A resumed run
    therefore draws the same numbers as an uninterrupted one. Augmentation depends neither on the
    number of data-loader workers nor on the number of processes. Without the hook MMEngine
    restarts its random generators on resume.

    Exact resume also needs deterministic arithmetic. CPU training is deterministic; on a GPU set
    ``randomness=dict(deterministic=True)``.

    Example:
        >>> custom_hooks = [dict(type='ExactResumeHook')]
    """

    priority = 'VERY_HIGH'

    def before_train(self, runner: Runner) -> None:
        loader = runner.train_dataloader
        sampler_owner = loader.batch_sampler
        if sampler_owner is None:
            raise ValueError('ExactResumeHook needs a data loader with a batch sampler')
        if isinstance(sampler_owner.sampler, _KeyedSampler):
            return
        sampler = sampler_owner.sampler
        if isinstance(getattr(sampler, 'indices', None), Generator):
            # The first iterator of the loop has read from the endless stream and closes it.
            sampler.indices = sampler._indices_of_rank()
        sampler_owner.sampler = _KeyedSampler(sampler, runner.seed)
        loader.dataset.__getitems__ = _KeyedFetch(loader.dataset)
        loop = runner.train_loop
        if hasattr(loop, 'dataloader_iterator'):
            # It may hold an iterator and workers with the previous sampler and data set.
            loader._iterator = None
            loop.dataloader_iterator = type(loop.dataloader_iterator)(loader)

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        seed_everything(runner.seed, _MODEL, get_rank(), runner.iter)
