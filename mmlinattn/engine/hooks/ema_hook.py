"""Moving average of the weights that is scored beside the trained model."""

from typing import Any, Iterator, Set, Tuple

import torch
from mmengine.dist import all_reduce_params, is_distributed
from mmengine.evaluator import DumpResults
from mmengine.hooks import EMAHook, RuntimeInfoHook
from mmengine.model import ExponentialMovingAverage
from mmengine.registry import HOOKS
from mmengine.runner import BaseLoop, Runner, autocast
from mmengine.runner.checkpoint import weights_to_cpu
from torch import nn


class ForeachExponentialMovingAverage(ExponentialMovingAverage):
    """MMEngine's moving average, updated by one operation instead of one for each tensor."""

    def update_parameters(self, model: nn.Module) -> None:
        if self.steps == 0 or self.steps % self.interval or not self.update_buffers:
            return super().update_parameters(model)
        if self.__dict__.get('_source') is not model:
            self.__dict__.update(_source=model, _places=[*_places(self.module, model)])
        averages = [ours[name] for ours, _, name in self._places]
        tensors = [theirs[name] for _, theirs, name in self._places]
        if not averages or averages[0].device != tensors[0].device:
            return super().update_parameters(model)
        with torch.no_grad():
            torch._foreach_lerp_(averages, tensors, self.momentum)
        self.steps += 1


def _places(average: nn.Module, model: nn.Module) -> Iterator[Tuple[dict, dict, str]]:
    """Yield the tables of two modules that hold a saved tensor of floats, and its name there."""
    seen: Set[int] = set()  # one that modules share is averaged once
    for path, ours in average.named_modules():
        theirs = model.get_submodule(path)
        for table in ('_parameters', '_buffers'):
            for name, x in getattr(ours, table).items():
                is_saved = x is not None and name not in ours._non_persistent_buffers_set
                if is_saved and x.is_floating_point() and id(x) not in seen:
                    seen.add(id(x))
                    yield getattr(ours, table), getattr(theirs, table), name


@HOOKS.register_module()
class ModelEMAHook(EMAHook):
    """Hook that keeps a moving average of the weights as timm's ``ModelEma`` and scores both.

    It differs from MMEngine's EMAHook, its base class, in four points:

    - The average starts from the weights before the first step. MMEngine starts it after that step.
    - Each validation scores the trained (raw) weights and then the average. ``accuracy/top1`` is
      the score of the raw weights, ``accuracy/top1_ema`` that of the average and
      ``accuracy/top1_best`` the higher of the two, for ``save_best``. A test of a checkpoint
      without an average scores the raw weights alone.
    - In a checkpoint ``state_dict`` holds the raw weights and ``ema_state_dict`` the average, as
      ``model`` and ``model_ema`` in files of DeiT's training script. MMEngine exchanges the two.
      A detector or segmentor that starts from the checkpoint gets the raw weights.
    - One operation averages all tensors, and one that modules share once. Modules may be replaced
      between epochs, not within one.

    Args:
        score: metric that ranks the weights, higher is better.
        kwargs: options of MMEngine's EMAHook. ``momentum`` is 1 - decay: with a decay of 0.99996
            for 512 images a step, ``1 - 0.99996 ** (batch_size / 512)``. ``update_buffers=True``
            also averages the running statistics of batch norms, at the end of an epoch and before
            a validation those of all processes.

    Raises:
        ValueError: after a validation, its metrics do not include ``score``.

    Source: main.py and engine.py of https://github.com/qhfan/RALA (classification).

    Example:
        >>> ema = dict(type='ModelEMAHook', momentum=1 - 0.99996**2, update_buffers=True)
        >>> custom_hooks = [ema]
        >>> default_hooks = dict(checkpoint=dict(save_best='accuracy/top1_best'))
    """

    def __init__(self, score: str = 'accuracy/top1', **kwargs: Any) -> None:
        super().__init__(**{'ema_type': ForeachExponentialMovingAverage, **kwargs})
        self.score = score
        # A test builds the average only if the checkpoint has one.
        self.ema_model: Any = None
        self.is_training = False

    def before_run(self, runner: Runner) -> None:
        # The training loop is not built for a test, unless by EarlyStoppingHook, later.
        self.is_training = isinstance(runner._train_loop, BaseLoop)
        if self.is_training:
            super().before_run(runner)
            # At 0 MMEngine replaces the average by the weights after the first step.
            self.ema_model.steps.fill_(1)

    def before_train(self, runner: Runner) -> None:
        super().before_train(runner)
        if not runner.iter:  # the model had no initial weights yet when it was copied
            self.ema_model.module.load_state_dict(self.src_model.state_dict())

    def before_train_epoch(self, runner: Runner) -> None:
        self.ema_model.__dict__.pop('_source', None)  # finds the tensors anew

    def after_train_epoch(self, runner: Runner) -> None:
        """Average running statistics over the processes: one of them saves, all of them score."""
        if self.ema_model.update_buffers and is_distributed():
            buffers = self.ema_model.module.buffers()
            all_reduce_params([x for x in buffers if x.is_floating_point()], op='mean')

    # MMEngine would exchange the weights here; the raw ones are scored first.
    def before_val_epoch(self, runner: Runner) -> None:
        if self.ema_model is not None:  # trained by iterations
            self.after_train_epoch(runner)

    def before_test_epoch(self, runner: Runner) -> None:
        pass

    def after_val_epoch(self, runner: Runner, metrics: dict) -> None:
        self._score_average(runner, runner.val_loop, 'val', metrics)

    def after_test_epoch(self, runner: Runner, metrics: dict) -> None:
        self._score_average(runner, runner.test_loop, 'test', metrics)

    def _score_average(self, runner: Runner, loop: BaseLoop, split: str, metrics: dict) -> None:
        """Add the scores of the average, if there is one, to ``metrics``."""
        if self.ema_model is None:
            return
        if self.score not in metrics:
            raise ValueError(f'ModelEMAHook.score is {self.score!r}, not one of {sorted(metrics)}')
        runner.logger.info('The moving average of the weights is scored now.')
        evaluator = loop.evaluator
        every_metric = evaluator.metrics
        # Predictions and pictures that a test saves are those of the raw weights.
        evaluator.metrics = [m for m in every_metric if not isinstance(m, DumpResults)]
        self._swap_ema_parameters()
        try:
            with torch.no_grad():
                for idx, batch in enumerate(loop.dataloader):
                    runner.call_hook(f'before_{split}_iter', batch_idx=idx, data_batch=batch)
                    with autocast(enabled=loop.fp16):
                        outputs = getattr(runner.model, f'{split}_step')(batch)
                    evaluator.process(outputs, batch)
            averaged = evaluator.evaluate(len(loop.dataloader.dataset))
        finally:
            self._swap_ema_parameters()
            evaluator.metrics = every_metric
        found = {f'{name}_ema': value for name, value in averaged.items()}
        found[f'{self.score}_best'] = max(metrics[self.score], averaged[self.score])
        # The checkpoint hook, which runs later, gets the same dict.
        metrics.update(found)
        getattr(RuntimeInfoHook(), f'after_{split}_epoch')(runner, found)

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        checkpoint['ema_state_dict'] = weights_to_cpu(self.ema_model.state_dict())

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Load the average to resume or to test; a new training starts it from the raw weights."""
        if 'ema_state_dict' in checkpoint and (runner._resume or not self.is_training):
            if not self.is_training:
                super().before_run(runner)
            self.ema_model.load_state_dict(checkpoint['ema_state_dict'], strict=self.strict_load)
        elif self.is_training:
            super().after_load_checkpoint(runner, dict(state_dict=checkpoint['state_dict']))
