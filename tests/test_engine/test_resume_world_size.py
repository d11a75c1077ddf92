"""Trainings that are resumed by another number of processes; whole runs are in test_tools."""

from types import SimpleNamespace

import pytest
import torch
from mmengine.dataset import DefaultSampler
from mmengine.logging import MessageHub
from mmengine.optim import (
    CosineAnnealingLR,
    CosineAnnealingMomentum,
    LinearLR,
    MultiStepLR,
    ReduceOnPlateauLR,
)  # fmt: skip
from torch.utils.data import BatchSampler, DataLoader

from mmlinattn.engine.distributed import resume_world_size
from mmlinattn.engine.distributed.resume_world_size import (
    replay,
    schedule_lengths,
    warn_on_world_size_change,
)
from mmlinattn.engine.runner.train_loop import ResumableEpochLoop

WARM_UP, EPOCHS = 3, 6


class Training:
    """The steps of optimizer and schedulers as MMEngine's loop and hook take them."""

    def __init__(self, length: int, *schedules, lr: float = 1.0) -> None:
        weight = torch.nn.Parameter(torch.zeros(1))
        self.optimizer = torch.optim.SGD([weight], lr=lr, momentum=0.9)
        self.schedulers = [build(self.optimizer, length) for build in schedules]
        self.length, self.iter = length, 0

    def run(self, until: int) -> list:
        """Rates and momenta of the iterations until then, and of the one after."""
        group, out = self.optimizer.param_groups[0], []
        while self.iter < until:
            out.append((group['lr'], group['momentum']))
            self.optimizer.step()
            self.iter += 1
            ends = self.iter % self.length == 0
            for by_epoch in (False, True)[: 1 + ends]:
                for scheduler in self.schedulers:
                    if scheduler.by_epoch == by_epoch:
                        scheduler.step()
        return [*out, (group['lr'], group['momentum'])]

    def resume(self, other: 'Training', epoch: int) -> None:
        """From the start of an epoch, as the runner does it."""
        built = schedule_lengths(self.schedulers)
        self.optimizer.load_state_dict(other.optimizer.state_dict())
        for mine, theirs in zip(self.schedulers, other.schedulers):
            mine.load_state_dict(dict(theirs.state_dict()))
        self.iter = epoch * self.length
        replay(self.schedulers, built, self.iter, self.length == other.length)


def by_epochs(kind, **options):
    """convert_to_iter_based."""
    return lambda optimizer, length: kind.build_iter_from_epoch(
        optimizer, by_epoch=True, epoch_length=length, **options
    )


LINEAR = by_epochs(LinearLR, start_factor=1e-3, begin=0, end=WARM_UP)
COSINE = by_epochs(
    CosineAnnealingLR, T_max=EPOCHS - WARM_UP, begin=WARM_UP, end=EPOCHS, eta_min=0.1
)
STEPS = by_epochs(MultiStepLR, milestones=[WARM_UP, 5], gamma=0.1)
MOMENTUM = by_epochs(CosineAnnealingMomentum, T_max=EPOCHS, begin=0, end=EPOCHS, eta_min=0.5)


def plain_steps(optimizer, length):
    return MultiStepLR(optimizer, milestones=[1, WARM_UP, 5], gamma=0.1)


SCHEDULES = {
    'linear': [LINEAR],
    'cosine': [LINEAR, COSINE],
    'steps': [LINEAR, STEPS],
    'steps by epoch': [LINEAR, plain_steps],
    'momentum': [LINEAR, COSINE, MOMENTUM],
}


@pytest.mark.parametrize('stop', [0.5, 0.9, 1.0, 1.5, 3.5, 5.9])
@pytest.mark.parametrize('lengths', [(10, 20), (20, 10), (10, 7), (10, 10)])
@pytest.mark.parametrize('name', SCHEDULES)
def test_rates_are_those_of_an_undisturbed_training(name, lengths, stop):
    schedules = SCHEDULES[name]
    then, now = lengths
    interrupted, whole = Training(then, *schedules), Training(now, *schedules)
    interrupted.run(int(stop * then))
    # Another rate in the config: that of the checkpoint counts.
    resumed = Training(now, *schedules, lr=7.0)
    resumed.resume(interrupted, int(stop))
    expected = whole.run(EPOCHS * now)[resumed.iter :]
    found = resumed.run(EPOCHS * now)
    assert found == [pytest.approx(pair, rel=1e-6) for pair in expected]


def test_a_warm_up_in_iterations_keeps_its_iteration():
    def warm_up(optimizer, _):
        return LinearLR(optimizer, start_factor=0.1, by_epoch=False, begin=0, end=30)

    interrupted, resumed = Training(10, warm_up, STEPS), Training(20, warm_up, STEPS)
    rate = interrupted.run(15)[-1][0]
    resumed.resume(interrupted, 1)
    assert resumed.optimizer.param_groups[0]['lr'] == pytest.approx(rate)
    assert [s._global_step for s in resumed.schedulers] == [15, 20]
    assert resumed.run(40)[-1][0] == pytest.approx(1)
    # None has another place: nothing is touched, not even a rate that another hook has set.
    same = Training(20, warm_up)
    interrupted = Training(10, warm_up)
    interrupted.run(15)
    interrupted.optimizer.param_groups[0]['lr'] = 0.25
    same.resume(interrupted, 1)
    assert same.optimizer.param_groups[0]['lr'] == 0.25


def test_a_schedule_that_follows_a_metric_is_refused():
    def plateau(optimizer, _):
        return ReduceOnPlateauLR(optimizer, monitor='loss', rule='less')

    interrupted = Training(10, LINEAR, plateau)
    interrupted.run(5)
    with pytest.raises(ValueError, match='ReduceOnPlateauLR cannot be put back'):
        Training(20, LINEAR, plateau).resume(interrupted, 0)
    # Alone it counts epochs, which stay.
    interrupted = Training(10, plateau)
    interrupted.run(5)
    interrupted.schedulers[0].step(dict(loss=1.0))
    Training(20, plateau).resume(interrupted, 0)


class OtherSampler(DefaultSampler):
    """As one of a user: what its order depends on is not known."""


def resumed(monkeypatch, loader, then: int, now: int, batch: int, iteration: int = 3):
    """(what is said, loop) of a training whose checkpoint was made in the middle of an epoch."""
    said = []
    monkeypatch.setattr(resume_world_size, 'log_warning', lambda text: said.append(text))
    monkeypatch.setattr(resume_world_size, 'get_world_size', lambda: now)
    hub = MessageHub('regroup')
    hub.update_info_dict(
        {resume_world_size.PROCESSES: then, resume_world_size.BATCH: batch, 'batches_an_epoch': 5}
    )
    logger = SimpleNamespace(warning=said.append)
    runner = SimpleNamespace(train_dataloader=loader, message_hub=hub, logger=logger)
    loop = ResumableEpochLoop.__new__(ResumableEpochLoop)
    loop._runner, loop.dataloader, loop._epoch, loop._iter = runner, loader, 1, 5 + iteration
    moved = loop.fit_epoch(warn_on_world_size_change(runner))
    return '\n'.join(said), loop._iter, moved


def loader_of(sampler, batch_sampler=None, batch: int = 4) -> DataLoader:
    data = list(range(5 * batch))
    sampler = sampler(data)
    if batch_sampler:
        return DataLoader(data, batch_sampler=batch_sampler(sampler, batch, False))
    return DataLoader(data, sampler=sampler, batch_size=batch)


class OtherBatches(BatchSampler):
    pass


def test_the_order_of_another_sampler_begins_again(monkeypatch):
    same = loader_of(DefaultSampler)
    said, place, moved = resumed(monkeypatch, same, then=2, now=1, batch=2)
    assert 'A step has 4 images as before. Images come in the same shuffled order' in said
    assert place == 8 and moved is None and 'start of epoch' not in said
    for loader, name in [
        (loader_of(OtherSampler), 'OtherSampler'),
        (loader_of(DefaultSampler, OtherBatches), 'OtherBatches'),
    ]:
        said, place, moved = resumed(monkeypatch, loader, then=2, now=1, batch=2)
        assert f'{name} deals out the images in another order' in said
        assert 'same shuffled order' not in said
        assert 'goes on at the start of epoch 2' in said and place == 5 and moved == 5
        # Nothing of the epoch was trained on yet, or nothing changed.
        assert resumed(monkeypatch, loader, then=2, now=1, batch=2, iteration=0)[1:] == (5, None)
        assert resumed(monkeypatch, loader, then=1, now=1, batch=4) == ('', 8, None)


def test_as_many_batches_of_another_size_are_other_images(monkeypatch):
    loader = loader_of(DefaultSampler)
    said, place, moved = resumed(monkeypatch, loader, then=1, now=1, batch=5)
    assert '4 images in place of 5' in said and place == 5 and moved == 5


@pytest.mark.parametrize(
    'start, told', [(2, 'Resumed before batch 3 of 5.'), (5, 'Resumed behind the last batch of 5.')]
)
def test_place_in_the_epoch_is_told_and_the_rest_is_trained(start, told, monkeypatch):
    """A checkpoint of the last iteration is from before the epoch's end was counted."""
    loop = ResumableEpochLoop.__new__(ResumableEpochLoop)
    lines, trained = [], []
    loop._runner = SimpleNamespace(
        logger=SimpleNamespace(info=lines.append),
        call_hook=lambda name: None,
        model=torch.nn.Identity(),
    )
    loop.dataloader = DataLoader(torch.arange(5))
    loop._start, loop._epoch = start, 3
    monkeypatch.setattr(loop, 'run_iter', lambda i, batch: trained.append((i, int(batch))))
    loop.run_epoch()
    assert lines == [told] and loop._epoch == 4
    assert trained == [(i, i) for i in range(start, 5)]
