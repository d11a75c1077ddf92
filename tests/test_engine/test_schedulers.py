"""The learning rate of each epoch equals the closed form of timm's scheduler."""

import math

import pytest
import torch
from mmengine.registry import PARAM_SCHEDULERS
from torch.optim import SGD

import mmlinattn  # noqa: F401


def cosine_with_warmup(epoch, *, lag, lr=1e-3, start=1e-6, floor=1e-5, warmup=5, epochs=300):
    """Closed form of timm's CosineLRScheduler without its restart, for the step ``epoch - lag``."""
    t = max(0, epoch - lag)
    if t < warmup:
        return start + t * (lr - start) / warmup
    return floor + 0.5 * (lr - floor) * (1 + math.cos(math.pi * t / epochs))


def build(optimizer, lag, **changes):
    path = 'mmlinattn.engine.schedulers.'
    warm = dict(type=path + 'LinearLR', start_factor=1e-3, end=5, lag=lag)
    cosine = dict(type=path + 'CosineAnnealingLR', eta_min=1e-5, end=300, lag=lag)
    options = (dict(warm, **changes), cosine)
    return [PARAM_SCHEDULERS.build(c, default_args=dict(optimizer=optimizer)) for c in options]


@pytest.mark.parametrize('lag', [0, 1])
def test_the_rate_of_each_epoch_is_that_of_timm(lag):
    optimizer = SGD([torch.zeros(1)], lr=1e-3)
    schedulers = build(optimizer, lag)
    for epoch in range(300):
        rate, wanted = optimizer.param_groups[0]['lr'], cosine_with_warmup(epoch, lag=lag)
        # The floor of the cosine raises the small rates of the warm-up a little.
        assert rate == pytest.approx(wanted, rel=5e-4), epoch
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
