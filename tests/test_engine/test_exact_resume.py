"""The keys from which random numbers are drawn; whole runs are in test_tools."""

import math
import random
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.runner import EpochBasedTrainLoop
from mmpretrain.datasets.samplers import repeat_aug
from mmpretrain.registry import DATA_SAMPLERS
from torch.utils.data import BatchSampler, DataLoader

from mmlinattn.engine.hooks import exact_resume_hook
from mmlinattn.engine.hooks.exact_resume_hook import ExactResumeHook, seed_everything
from mmlinattn.engine.hooks.preemption_hook import Preempted, PreemptionHook
from mmlinattn.utils.errors import InputError
from tests.test_engine.tiny_runner import IMAGES, Constant, Net, Pair, tiny_runner


def draw() -> tuple:
    """A number of each generator."""
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def on_rank(monkeypatch, rank: int, world_size: int = 2) -> None:
    monkeypatch.setattr(exact_resume_hook, 'get_rank', lambda: rank)
    monkeypatch.setattr(exact_resume_hook, 'get_world_size', lambda: world_size)


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


def test_a_loader_without_a_batch_sampler():
    runner = SimpleNamespace(train_dataloader=SimpleNamespace(batch_sampler=None), train_loop=None)
    with pytest.raises(ValueError, match='needs a data loader with a batch sampler'):
        ExactResumeHook().before_train(runner)


def test_a_resume_by_the_runner_itself():
    loader = DataLoader(Drawing(), batch_sampler=BatchSampler(range(16), 2, True))
    loop = EpochBasedTrainLoop.__new__(EpochBasedTrainLoop)
    runner = SimpleNamespace(
        train_dataloader=loader, train_loop=loop, seed=7, iter=4, epoch=1, _resume=False
    )
    hook = ExactResumeHook()
    hook.info = dict(max_iters=8, max_epochs=2)
    with pytest.raises(ValueError, match='an epoch has 8 batches, in the checkpoint 4: resume'):
        hook.before_train(runner)


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


class Drawing:
    """A data set whose samples are an index and random numbers."""

    def __getitem__(self, index: int) -> tuple:
        return index, *draw()


def loader_of(sampler, batch_size: int, workers: int = 0) -> DataLoader:
    """A data loader as the hook leaves it, for a loop by iterations."""
    batches = BatchSampler(sampler, batch_size, drop_last=True)
    loader = DataLoader(Drawing(), batch_sampler=batches, collate_fn=list, num_workers=workers)
    loop = SimpleNamespace(dataloader_iterator=[])
    ExactResumeHook().before_train(
        SimpleNamespace(train_dataloader=loader, seed=7, train_loop=loop)
    )
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


def test_augmentation_follows_the_place_in_the_stream_of_all_processes(monkeypatch):
    """One process that reads the whole stream draws the same for every sample."""
    on_rank(monkeypatch, 0, 1)
    whole = [sample for batch in loader_of([5, 3, 1, 0, 4, 2], 4) for sample in batch]
    found = []
    for rank in (0, 1):
        on_rank(monkeypatch, rank)
        loader = loader_of([5, 3, 1, 0, 4, 2][rank::2], 2)
        found += [sample for batch in loader for sample in batch]
    assert sorted(found) == sorted(whole) and len(whole) == 4
    assert len({number for _, *numbers in whole for number in numbers}) == 12


@pytest.mark.parametrize('rank', [0, 1, 2])
def test_an_epoch_goes_on_where_it_was(sampler_of, rank):
    sampler = sampler_of(rank, 3, 30)
    sampler.set_epoch(4)
    whole = [*loader_of(sampler, 2)]
    again = sampler_of(rank, 3, 30)
    again.set_epoch(4)
    loader = loader_of(again, 2, workers=2)
    loader.batch_sampler.start = 3
    assert [*loader] == whole[3:]
    assert [*loader] == whole  # the next epoch starts at its beginning
    again.set_epoch(5)
    other = {x for batch in loader for _, *numbers in batch for x in numbers}
    assert not other & {x for batch in whole for _, *numbers in batch for x in numbers}


@pytest.mark.parametrize(('world_size', 'batch'), [(8, 128), (4, 256), (16, 64), (64, 16)])
def test_an_epoch_has_as_many_steps_as_that_of_deit(sampler_of, world_size, batch):
    """DeiT takes floor(N // 256 * 256 / GPUs) images a GPU; both drop the last, smaller batch."""
    images = 1281167
    steps = math.floor(images // 256 * 256 / world_size) // batch
    assert len(sampler_of(0, world_size, images)) // batch == steps == 1251


class Images(list):
    """A list that takes attributes."""


@pytest.fixture
def trained(tmp_path):
    """trained(number of optimizers, iterations, **options): a training by steps of three."""

    def call(optimizers: int, length: int, **options) -> tuple:
        model, steps = Pair() if optimizers == 2 else Net(), dict(accumulative_counts=3)
        parameters = dict(zip('ab', model.parameters()))
        wrapper = OptimWrapperDict(**{
            name: OptimWrapper(torch.optim.SGD([p], 0.125), **steps)
            for name, p in parameters.items()
        })  # fmt: skip
        if optimizers == 1:
            wrapper = dict(optimizer=dict(type='SGD', lr=0.125), **steps)
        saves = dict(type='CheckpointHook', by_epoch=False, interval=1)
        saves.update(save_optimizer=options.pop('save_optimizer', True))
        hooks = [dict(type='ExactResumeHook'), *options.pop('hooks', ())]
        options.update(custom_hooks=hooks, optim_wrapper=wrapper)
        options.update(default_hooks=dict(checkpoint=saves), dataset=Images(IMAGES))
        tiny_runner(tmp_path, length, by_epoch=False, model=model, **options).train()
        return [*map(float, model.parameters())], lambda i: str(tmp_path / f'iter_{i}.pth')

    return call


@pytest.mark.parametrize('optimizers', [1, 2])
def test_accumulated_gradients_are_resumed(trained, optimizers):
    whole, path = trained(optimizers, 6)
    assert whole == [-0.25, -0.5][:optimizers]
    sizes = [torch.load(path(i), weights_only=False).get('accumulated') for i in range(1, 7)]
    assert [bool(size) for size in sizes] == [True, True, False] * 2
    for i in (3, 4, 5):
        assert trained(optimizers, 6, load_from=path(i), resume=True)[0] == whole
    # The weights of iteration 5, and one step.
    assert trained(optimizers, 3, load_from=path(5))[0] == whole


@pytest.mark.parametrize('by_epoch', [True, False])
def test_the_order_of_images_without_a_seed(tmp_path, by_epoch, monkeypatch):
    """MMEngine draws a seed, and builds the sampler before it reads that of the checkpoint."""
    images = Images(dict(inputs=torch.tensor(float(i))) for i in range(10))

    def order(process, **options):
        monkeypatch.setattr('mmengine.runner.utils.sync_random_seed', lambda: process)
        seen = []
        hook = Hook()
        hook.after_train_iter = lambda runner, data_batch, **_: seen.append(
            int(data_batch['inputs'])
        )
        sampler = dict(type='DefaultSampler' if by_epoch else 'InfiniteSampler', shuffle=True)
        loader = dict(
            dataset=images, batch_size=1, sampler=sampler,
            collate_fn=dict(type='default_collate'),
        )  # fmt: skip
        tiny_runner(
            tmp_path, 1 if by_epoch else 10, by_epoch, train_dataloader=loader,
            custom_hooks=[dict(type='ExactResumeHook'), hook],
            default_hooks=dict(checkpoint=dict(type='CheckpointHook', interval=4, by_epoch=False)),
            randomness=dict(seed=None),  # not MMEngine's default, which a resume changes
            **options,
        ).train()  # fmt: skip
        return seen

    whole = order(0)
    assert sorted(whole) == [*range(10)]
    assert order(1, load_from=str(tmp_path / 'iter_4.pth'), resume=True) == whole[4:]


def test_what_needs_no_accumulated_gradients(trained):
    """A parameter that is frozen now, and checkpoints without the state of the optimizer."""
    _, path = trained(1, 5)
    net, hook = Net().requires_grad_(False), ExactResumeHook()
    hook.after_load_checkpoint(None, torch.load(path(4), weights_only=False))
    wrapper, logger = SimpleNamespace(), SimpleNamespace(info=print)
    hook._restore_gradients(
        SimpleNamespace(model=net, iter=4, optim_wrapper=wrapper, logger=logger)
    )
    assert net.weight.grad is None and wrapper._inner_count == 4
    # Gradients of --amp on a GPU are multiplied by a scale.
    hook.after_load_checkpoint(None, torch.load(path(4), weights_only=False))
    wrapper.loss_scaler = SimpleNamespace(get_scale=lambda: 65536.0)
    with pytest.raises(InputError, match='have a loss scale of 1.0, here it is 65536.0: resume'):
        hook._restore_gradients(SimpleNamespace(model=net, iter=4, optim_wrapper=wrapper))
    _, path = trained(1, 3, save_optimizer=False)
    assert 'accumulated' not in torch.load(path(2), weights_only=False)
    wrapper, content = SimpleNamespace(), dict(optimizer={})  # of a class that accumulates none
    hook.before_save_checkpoint(SimpleNamespace(optim_wrapper=wrapper, hooks=[]), content)
    assert content == dict(optimizer={})


@pytest.mark.parametrize('resumed', [1, 2, 3])
def test_early_stopping_remembers_its_wait(tmp_path, resumed):
    """The first score is the best one, and the third after it ends the training."""
    stop = dict(type='EarlyStoppingHook', monitor='score', rule='greater', patience=3)
    options = dict(metrics=[Constant()], custom_hooks=[dict(type='ExactResumeHook'), stop])
    options['dataset'] = Images(IMAGES)

    def last_epoch(**changes):
        runner = tiny_runner(tmp_path, 9, **options, **changes)
        runner.train()
        return runner.epoch

    assert last_epoch() == 4
    path = str(tmp_path / f'epoch_{resumed}.pth')
    assert last_epoch(load_from=path, resume=True) == 4
    assert last_epoch(load_from=path) == 4  # from the weights
    stop['monitor'] = 'other'  # of which the checkpoint knows nothing
    assert last_epoch(load_from=path, resume=True) == resumed + 4


def test_a_kill_before_a_validation_that_saves_the_best(tmp_path):
    """The repeated validation comes after the hooks that it needs; intervals may change."""
    saves = dict(type='CheckpointHook', interval=1, save_best='score', rule='greater')
    stop = dict(type='EarlyStoppingHook', monitor='score', rule='greater', patience=3)
    options = dict(metrics=[Constant()], custom_hooks=[dict(type='ExactResumeHook'), stop])
    options.update(default_hooks=dict(checkpoint=saves), dataset=Images(IMAGES))
    options['train_cfg'] = dict(max_epochs=9, val_interval=4, dynamic_intervals=[(2, 1)])
    options['train_cfg']['by_epoch'] = True
    runner = tiny_runner(tmp_path, 9, **options)
    runner.train()
    assert runner.epoch == 4
    for path in tmp_path.glob('best_*'):
        path.unlink()
    content = torch.load(tmp_path / 'epoch_1.pth', weights_only=False)
    for name in ('best_score', 'best_ckpt'):  # as of a kill inside of the validation
        content['message_hub']['runtime_info'].pop(name, None)
    content['early_stopping'] = dict(score=(0, -math.inf))
    torch.save(content, tmp_path / 'killed.pth')
    path = str(tmp_path / 'killed.pth')
    runner = tiny_runner(tmp_path, 9, load_from=path, resume=True, **options)
    runner.train()
    assert runner.epoch == 4 and (tmp_path / 'best_score_epoch_1.pth').exists()


@pytest.mark.parametrize('optimizers', [1, 2])
def test_a_preempted_training_ends_with_a_step(trained, tmp_path, optimizers):
    hook = PreemptionHook()
    hook.received = True
    with pytest.raises(Preempted):
        trained(optimizers, 6, hooks=[hook])
    content = torch.load(tmp_path / 'interrupted.pth', weights_only=False)
    assert content['meta']['iter'] == 3 and 'accumulated' not in content


def test_accumulated_gradients_of_several_processes(trained, monkeypatch):
    monkeypatch.setattr(exact_resume_hook, 'get_world_size', lambda: 2)
    _, path = trained(1, 2)
    assert 'accumulated' not in torch.load(path(2), weights_only=False)
    log = ''.join(log.read_text() for log in Path(path(2)).parent.glob('*/*.log'))
    assert 'cannot be resumed exactly: it lacks the gradients' in log


@pytest.mark.parametrize('last, kept', [('interrupted.pth', 1), (None, 1), ('epoch_2.pth', 0)])
def test_the_state_of_a_preempted_training_stays_until_a_newer_one(tmp_path, last, kept):
    """An early stop after the resume may save none."""
    (tmp_path / 'interrupted.pth').touch()
    if last:
        (tmp_path / 'last_checkpoint').write_text(str(tmp_path / last))
    PreemptionHook().after_train(SimpleNamespace(work_dir=str(tmp_path)))
    assert (tmp_path / 'interrupted.pth').exists() == bool(kept)
