"""Learning-rate schedulers that count epochs as timm's do.

MMEngine's linear warm-up reaches the base rate in its last step, timm's one step later. DeiT's
training script also steps timm's schedulers with the index of the finished epoch: the first two
epochs run at the same rate, ``lag=1``. Name the classes by their full path::

    param_scheduler = [
        dict(type='mmlinattn.engine.schedulers.LinearLR', start_factor=1e-3, end=5, lag=1),
        dict(type='mmlinattn.engine.schedulers.CosineAnnealingLR', eta_min=1e-5, end=300, lag=1),
    ]

Both start at epoch 0: the cosine counts the epochs of the warm-up, as in timm. It also lowers the
rates of the warm-up itself, which timm's does not: by at most 1.1% in 20 of 300 epochs.
"""

import math
from typing import List

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
        self.lag = lag
        super().__init__(optimizer, begin=begin, end=end + lag + 1, **kwargs)

    def _factor(self, step: int) -> float:
        done = max(0, step - self.lag) / (self.end - 1 - self.lag - self.begin)
        return self.start_factor + (self.end_factor - self.start_factor) * done

    def _get_value(self) -> List[float]:
        before = 1.0 if self.last_step == 0 else self._factor(self.last_step - 1)
        ratio = self._factor(self.last_step) / before
        return [group[self.param_name] * ratio for group in self.optimizer.param_groups]


class CosineAnnealingLR(scheduler.CosineAnnealingLR):
    """Cosine decay whose values come ``lag`` steps later.

    Args:
        optimizer: optimizer or its wrapper.
        lag: number of steps by which every value comes later.
        **kwargs: options of MMEngine's ``CosineAnnealingLR``.
    """

    def __init__(self, optimizer, *, lag: int = 0, **kwargs) -> None:
        self.lag = lag
        super().__init__(optimizer, **kwargs)

    def _get_value(self) -> List[float]:
        step = self.last_step - self.lag
        if step <= 0:
            return [group[self.param_name] for group in self.optimizer.param_groups]
        ratio = (1 + math.cos(math.pi * step / self.T_max)) / (
            1 + math.cos(math.pi * (step - 1) / self.T_max)
        )
        values = []
        for base, group in zip(self.base_values, self.optimizer.param_groups):
            floor = self.eta_min if self.eta_min_ratio is None else base * self.eta_min_ratio
            values.append(floor + (group[self.param_name] - floor) * ratio)
        return values
