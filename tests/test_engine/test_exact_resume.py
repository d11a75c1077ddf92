"""The keys from which random numbers are drawn; whole runs are in test_tools."""

import math
import random
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmpretrain.datasets.samplers import repeat_aug
from mmpretrain.registry import DATA_SAMPLERS
from torch.utils.data import BatchSampler, DataLoader

from mmlinattn.engine.runner import exact_resume
from mmlinattn.engine.runner.exact_resume import ExactResumeHook, seed_everything
from mmlinattn.engine.runner.train_loop import _skip_batches


def draw() -> tuple:
    """A number of each generator."""
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def on_rank(monkeypatch, rank: int, world_size: int = 2) -> None:
    monkeypatch.setattr(exact_resume, 'get_rank', lambda: rank)
    monkeypatch.setattr(exact_resume, 'get_world_size', lambda: world_size)


def drawn_in_training(seed: int, iteration: int) -> tuple:
    ExactResumeHook().before_train_iter(SimpleNamespace(seed=seed, iter=iteration), 0)
    return draw()


def test_every_generator_is_seeded_and_every_word_counts():
    keys = [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)]
    found = []
    for key in keys:
        seed_everything(*key)
        found.append(draw())
        draw()
        seed_everything(*key)
        assert draw() == found[-1]
    for numbers in zip(*found):
        assert len(set(numbers)) == len(keys)


def test_each_iteration_and_rank_has_numbers_of_its_own(monkeypatch):
    found = {}
    for rank in (0, 1):
        on_rank(monkeypatch, rank)
        for seed in (3, 4):
            for iteration in (0, 1, 2):
                found[rank, seed, iteration] = drawn_in_training(seed, iteration)
        assert drawn_in_training(3, 1) == found[rank, 3, 1]
    assert len(set(found.values())) == len(found)


class Sampler:
    """Six samples for two processes, as MMEngine's samplers hand them out."""

    def __init__(self, rank: int) -> None:
        self.rank, self.epoch, self.start = rank, 0, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def skip(self, num_samples: int) -> None:
        self.start = num_samples

    def __iter__(self):
        yield from [5, 3, 1, 0, 4, 2][self.rank :: 2][self.start :]


@pytest.fixture
def loader(monkeypatch):
    """loader(rank): what the hook has made of a data loader of that process."""

    def make(rank: int) -> SimpleNamespace:
        on_rank(monkeypatch, rank)
        loader = SimpleNamespace(
            batch_sampler=SimpleNamespace(sampler=Sampler(rank)),
            dataset=type('Set', (), {'__getitem__': lambda self, i: (i, *draw())})(),
        )
        runner = SimpleNamespace(train_dataloader=loader, seed=7, train_loop=object())
        ExactResumeHook().before_train(runner)
        wrapped = loader.batch_sampler.sampler
        ExactResumeHook().before_train(runner)
        assert loader.batch_sampler.sampler is wrapped
        return loader

    return make


def samples(loader) -> list:
    return loader.dataset.__getitems__(list(loader.batch_sampler.sampler))


def test_augmentation_follows_the_place_in_the_stream_of_all_processes(loader, monkeypatch):
    first, second = samples(loader(0)), samples(loader(1))
    assert [i for i, *_ in first] == [5, 1, 4]
    assert [i for i, *_ in second] == [3, 0, 2]
    assert len({numbers for _, *rest in first + second for numbers in rest}) == 18
    # One process that reads the whole stream draws the same for every sample.
    whole = loader(0)
    on_rank(monkeypatch, 0, 1)
    whole.batch_sampler.sampler.sampler = [5, 3, 1, 0, 4, 2]
    assert sorted(samples(whole)) == sorted(first + second)


def test_epochs_differ_and_skipped_samples_count(loader):
    whole = loader(0)
    expected = samples(whole)
    sampler = whole.batch_sampler.sampler
    sampler.sampler.skip(1)  # as MMEngine fast-forwards a resumed run
    assert samples(whole) == expected[1:]
    sampler.sampler.start = 0
    assert samples(whole) == expected  # the next epoch starts at its beginning
    sampler.set_epoch(1)
    other = samples(whole)
    assert [i for i, *_ in other] == [i for i, *_ in expected]
    assert not {x for _, *rest in other for x in rest} & {x for _, *rest in expected for x in rest}


def test_a_loader_without_a_batch_sampler():
    runner = SimpleNamespace(train_dataloader=SimpleNamespace(batch_sampler=None))
    with pytest.raises(ValueError, match='needs a data loader with a batch sampler'):
        ExactResumeHook().before_train(runner)


# Repeated augmentation, from the sampler that the configs name.
DEIT = 'configs/vit/deit-t_8xb128_in1k.py'


@pytest.fixture
def sampler_of(monkeypatch, root):
    """sampler_of(rank, world_size, images): the training sampler of DeiT's config there."""
    cfg = Config.fromfile(root / DEIT).train_dataloader.sampler

    def make(rank: int, world_size: int, images: int):
        on_rank(monkeypatch, rank, world_size)
        monkeypatch.setattr(repeat_aug, 'get_dist_info', lambda: (rank, world_size))
        with DATA_SAMPLERS.switch_scope_and_registry('mmpretrain') as registry:
            return registry.build(cfg, default_args=dict(dataset=range(images), seed=7))

    return make


def loader_of(sampler, batch_size: int) -> DataLoader:
    """A data loader that draws a number for each sample, as the hook leaves it."""
    dataset = type('Set', (), {'__getitem__': lambda self, i: (i, *draw())})()
    batches = BatchSampler(sampler, batch_size, drop_last=True)
    loader = DataLoader(dataset, batch_sampler=batches, collate_fn=list)
    runner = SimpleNamespace(train_dataloader=loader, seed=7, train_loop=object())
    ExactResumeHook().before_train(runner)
    return loader


def test_three_processes_see_three_views_of_an_image(sampler_of):
    views = defaultdict(list)
    for rank in range(3):
        for batch in loader_of(sampler_of(rank, 3, 12), 2):
            for image, *numbers in batch:
                views[image].append((rank, *numbers))
    assert len(views) == 4  # a third of the images
    for seen in views.values():
        assert [rank for rank, *_ in seen] == [0, 1, 2]
        for numbers in list(zip(*seen))[1:]:
            assert len(set(numbers)) == 3, 'the same augmentation twice'


@pytest.mark.parametrize('rank', [0, 1, 2])
def test_repeated_views_go_on_inside_an_epoch(sampler_of, rank):
    sampler = sampler_of(rank, 3, 30)
    sampler.set_epoch(4)
    whole = [*loader_of(sampler, 2)]
    again = sampler_of(rank, 3, 30)
    again.set_epoch(4)
    assert [*_skip_batches(loader_of(again, 2), 3)] == whole[3:]
    again.set_epoch(5)
    assert [*loader_of(again, 2)] != whole


@pytest.mark.parametrize(('world_size', 'batch'), [(8, 128), (4, 256), (16, 64), (64, 16)])
def test_an_epoch_has_as_many_steps_as_that_of_deit(sampler_of, world_size, batch):
    """DeiT takes floor(N // 256 * 256 / GPUs) images a GPU; both drop the last, smaller batch."""
    images = 1281167
    steps = math.floor(images // 256 * 256 / world_size) // batch
    assert len(sampler_of(0, world_size, images)) // batch == steps == 1251
