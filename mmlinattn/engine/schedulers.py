"""Learning-rate schedulers with the rates of timm's, step by step.

timm's warm-up reaches the base rate one step later than MMEngine's, and its cosine counts from the
first step but begins after the warm-up. DeiT's training script also steps timm's schedulers with
the index of the finished epoch: the first two epochs run at the same rate, ``lag=1``. Name the
classes by their full path::

    path = 'mmlinattn.engine.schedulers.'
    param_scheduler = [
        dict(type=path + 'LinearLR', start_factor=1e-3, end=5, lag=1),
        dict(type=path + 'CosineAnnealingLR', eta_min=1e-5, end=300, warmup=5, lag=1),
    ]
"""

import math
from typing import Any, List

from mmengine.optim import scheduler


class LinearLR(scheduler.LinearLR):
    """Linear warm-up that reaches the base rate at step ``end + lag``.

    The factor of step t is ``start_factor + (1 - start_factor) * max(0, t - lag) / (end - begin)``.

    Args:
        optimizer: optimizer or its wrapper.
        begin: first step.
        end: step after which the rate is the base rate, without the lag.
        lag: number of steps by which every value comes later; the first value lasts ``lag + 1``
            steps.
        **kwargs: further options of MMEngine's ``LinearLR``.
    """

    def __init__(self, optimizer, *, end: int, begin: int = 0, lag: int = 0, **kwargs) -> None:
        if end <= begin:  # MMEngine looks at the end with the lag
            raise ValueError(f'end should be larger than begin, got begin={begin}, end={end}')
        self.lag = lag
        super().__init__(optimizer, begin=begin, end=end + lag + 1, **kwargs)

    def _get_value(self) -> List[float]:
        done = max(0, self.last_step - self.lag) / (self.end - 1 - self.lag - self.begin)
        factor = self.start_factor + (self.end_factor - self.start_factor) * done
        return [base * factor for base in self.base_values]


class CosineAnnealingLR(scheduler.CosineAnnealingLR):
    """Cosine decay that leaves the first steps to a warm-up.

    The rate of step t is ``eta_min + (base - eta_min) * (1 + cos(pi * (t - lag) / end)) / 2`` from
    step ``warmup + lag`` on. Put the schedule of the warm-up before it.

    Args:
        optimizer, lag: as in :class:`LinearLR`.
        warmup: number of steps of the warm-up.
        **kwargs: options of MMEngine's ``CosineAnnealingLR``.
    """

    def __init__(self, optimizer, *, warmup: int = 0, lag: int = 0, **kwargs) -> None:
        self.warmup = warmup
        self.lag = lag
        super().__init__(optimizer, **kwargs)

    @classmethod
    def build_iter_from_epoch(
        cls, *args: Any, warmup: int = 0, epoch_length: int, **kwargs: Any
    ) -> 'CosineAnnealingLR':
        """Return the schedule by iterations; ``lag`` counts iterations then."""
        return super().build_iter_from_epoch(
            *args, warmup=warmup * epoch_length, epoch_length=epoch_length, **kwargs
        )

    def _get_value(self) -> List[float]:
        step = self.last_step - self.lag
        if step < self.warmup:
            return [group[self.param_name] for group in self.optimizer.param_groups]
        factor = (1 + math.cos(math.pi * step / self.T_max)) / 2
        ratio = self.eta_min_ratio
        floors = [self.eta_min if ratio is None else base * ratio for base in self.base_values]
        return [low + (base - low) * factor for base, low in zip(self.base_values, floors)]
