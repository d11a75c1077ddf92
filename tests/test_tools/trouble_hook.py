"""Hooks for the tests of trainings that diverge or whose disk is full."""

import resource

import torch
from mmengine.dist import get_rank
from mmengine.hooks import EMAHook, Hook
from mmengine.registry import HOOKS


@HOOKS.register_module()
class DivergeHook(Hook):
    """After the iteration ``at`` the first weight of the last process is NaN, in the model or in
    its moving average."""

    def __init__(self, at: int, average: bool = False) -> None:
        self.at, self.average = at, average

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
        if runner.iter + 1 != self.at or get_rank() + 1 != runner.world_size:
            return
        model = runner.model
        if self.average:
            model = next(hook for hook in runner.hooks if isinstance(hook, EMAHook)).ema_model
        with torch.no_grad():
            parameter = next(model.parameters())
            getattr(parameter, '_local_tensor', parameter).fill_(float('nan'))


@HOOKS.register_module()
class FullDiskHook(Hook):
    """From the iteration ``at`` the process ``rank`` can write no more than ``size`` bytes."""

    def __init__(self, at: int, rank: int, size: int) -> None:
        self.at, self.rank, self.size = at, rank, size

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        if runner.iter + 1 == self.at and get_rank() == self.rank:
            _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.size, hard))
