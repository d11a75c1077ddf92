"""Hook that ends a diverged training with an error."""

import math
from typing import Any, Iterator, Optional

from mmengine.dist import all_gather_object
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ...utils import check_integer
from ..distributed.launch import any_process, cpu_group

# The loss scale is read at every tenth check only, since reading it waits for the GPU.
CHECKS_A_SCALE = 10


class TrainingDiverged(RuntimeError):
    """Error of a training whose loss or loss scale cannot recover; names the iteration."""


@HOOKS.register_module()
class DivergenceHook(Hook):
    """Hook that ends a training whose loss stays NaN or infinite or whose loss scale collapsed.

    The hook uses the losses that MMEngine has already read for its log, so the check does not wait
    for the device. A few isolated non-finite losses are no error: mixed precision skips them.
    ``mmlinattn train`` uses the hook.

    Args:
        patience: number of consecutive iterations without a finite loss that ends the training.
            All processes check together every ``patience`` iterations, and check the loss scale
            at every tenth check.
        min_loss_scale: smallest loss scale in mixed precision. At the default 2**-16 a gradient
            that still overflows in float16 is larger than 4e9.

    Raises:
        ValueError: ``patience`` is not a positive integer, or ``min_loss_scale`` is negative.

    Example:
        >>> custom_hooks = [dict(type='DivergenceHook', patience=50)]
    """

    # After LoggerHook, which logs the loss, and before the checkpoint hook.
    priority = 'LOW'

    def __init__(self, patience: int = 10, min_loss_scale: float = 2.0**-16) -> None:
        patience = check_integer('DivergenceHook.patience', patience)
        if not min_loss_scale >= 0:
            raise ValueError(
                f'DivergenceHook.min_loss_scale must not be negative, got {min_loss_scale}'
            )
        self.patience = patience
        self.min_loss_scale = min_loss_scale
        self.in_a_row = 0
        self.group: Any = None

    def before_train(self, runner: Runner) -> None:
        self.in_a_row = 0
        self.group = cpu_group(runner.cfg)

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Optional[dict] = None
    ) -> None:
        losses = _logged_losses(runner, outputs or {})
        finite = all(map(math.isfinite, losses.values()))
        self.in_a_row = 0 if finite else self.in_a_row + 1
        done = runner.iter + 1
        if done % self.patience:
            return
        problem = self._problem(runner, done, losses)
        if any_process(problem is not None, self.group):
            raise TrainingDiverged(next(filter(None, all_gather_object(problem))))

    def _problem(self, runner: Runner, done: int, losses: dict) -> Optional[str]:
        """Return the error message, or None while the training may recover."""
        if self.in_a_row >= self.patience:
            values = ', '.join(f'{name} {value:g}' for name, value in losses.items())
            why = f'no finite loss since iteration {done - self.in_a_row + 1} ({values})'
        elif done // self.patience % CHECKS_A_SCALE == 0 and any(
            scale < self.min_loss_scale for scale in _loss_scales(runner.optim_wrapper)
        ):
            why = f'the loss scale has fallen below {self.min_loss_scale:g}'
        else:
            return None
        last = runner.message_hub.runtime_info.get('last_ckpt')
        return (
            f'iteration {done}: {why}. Lower the learning rate, or set optim_wrapper.clip_grad; '
            + (f'the last checkpoint is {last}' if last else 'there is no checkpoint yet')
        )


def _logged_losses(runner: Runner, outputs: dict) -> dict:
    """Return the losses of this iteration by name, as read by RuntimeInfoHook."""
    logged = runner.message_hub.log_scalars
    names = [name for name in outputs if 'loss' in name and f'train/{name}' in logged]
    return {name: logged[f'train/{name}'].current() for name in names}


def _loss_scales(wrapper: Any) -> Iterator[float]:
    for each in getattr(wrapper, 'optim_wrappers', dict(one=wrapper)).values():
        scaler = getattr(each, 'loss_scaler', None)
        if scaler is not None:
            yield scaler.get_scale()
