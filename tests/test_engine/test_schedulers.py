"""The learning rate of each epoch equals the closed form of timm's scheduler."""

import math

import pytest
import torch
from mmengine.registry import PARAM_SCHEDULERS
from torch.optim import SGD

from mmlinattn.engine.schedulers import LinearLR


def cosine_with_warmup(epoch, *, lag, lr=1e-3, start=1e-6, floor=1e-5, warmup=5, epochs=300):
    """Closed form of timm's CosineLRScheduler without its restart, for the step ``epoch - lag``."""
    t = max(0, epoch - lag)
    if t < warmup:
        return start + t * (lr - start) / warmup
    return floor + 0.5 * (lr - floor) * (1 + math.cos(math.pi * t / epochs))


def build(optimizer, lag, **changes):
    path = 'mmlinattn.engine.schedulers.'
    warm = dict(type=path + 'LinearLR', start_factor=1e-3, end=5, lag=lag)
    cosine = dict(type=path + 'CosineAnnealingLR', eta_min=1e-5, end=300, warmup=5, lag=lag)
    options = (dict(warm, **changes), dict(cosine, **changes))
    return [PARAM_SCHEDULERS.build(c, default_args=dict(optimizer=optimizer)) for c in options]


@pytest.mark.parametrize('lag', [0, 1])
def test_the_rate_of_each_epoch_is_that_of_timm(lag):
    optimizer = SGD([dict(params=torch.zeros(1), lr=lr) for lr in (1e-3, 1e-4)])
    schedulers = build(optimizer, lag)
    for epoch in range(300):
        wanted = cosine_with_warmup(epoch, lag=lag)
        assert optimizer.param_groups[0]['lr'] == pytest.approx(wanted, rel=1e-12), epoch
        # Groups keep their ratio in the warm-up; the floor is the same for all.
        if epoch < 5 + lag:
            assert optimizer.param_groups[1]['lr'] == pytest.approx(wanted / 10, rel=1e-12), epoch
        for scheduler in schedulers:
            scheduler.step()


def test_a_warm_up_without_a_step():
    with pytest.raises(ValueError, match='end should be larger than begin, got begin=0, end=0'):
        LinearLR(SGD([torch.zeros(1)], lr=1e-3), end=0)


def test_the_rate_of_each_iteration_is_that_of_timm():
    """Epochs of seven iterations; the lag is one iteration."""
    optimizer = SGD([torch.zeros(1)], lr=1e-3)
    schedulers = build(optimizer, 1, convert_to_iter_based=True, epoch_length=7)
    for i in range(300 * 7):
        wanted = cosine_with_warmup(i, lag=1, warmup=35, epochs=2100)
        assert optimizer.param_groups[0]['lr'] == pytest.approx(wanted, rel=1e-12), i
        for scheduler in schedulers:
            scheduler.step()


def test_a_resumed_schedule_goes_on():
    optimizer = SGD([torch.zeros(1)], lr=1e-3)
    schedulers = build(optimizer, 1)
    for _ in range(4):
        [scheduler.step() for scheduler in schedulers]
    again = SGD([torch.zeros(1)], lr=1e-3)
    resumed = build(again, 1)
    again.load_state_dict(optimizer.state_dict())
    for scheduler, other in zip(resumed, schedulers):
        scheduler.load_state_dict(other.state_dict())
    for _ in range(8):
        assert again.param_groups[0]['lr'] == optimizer.param_groups[0]['lr']
        [scheduler.step() for scheduler in (*schedulers, *resumed)]
