"""Schedules of a training: a trial before work, and the config's schedule on resume."""

import copy
from contextlib import contextmanager
from itertools import chain
from typing import Any, Dict, Iterator, List, Sequence, Set

from mmengine.optim import OptimWrapper
from mmengine.optim.scheduler.param_scheduler import OneCycleParamScheduler
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop, Runner

from ...utils.command_line import error_text
from ...utils.messages import log_warning
from ..model import length_before, optim_wrappers, quiet
from ..preflight.evaluators import check_monitor

# Attributes of schedulers that are no options: their steps change them, or their optimizer.
STATE = {
    'last_step', '_global_step', '_last_value', 'best', 'cooldown_counter', 'num_bad_epochs',
    'optimizer', 'base_values', '_schedule_phases',
}  # fmt: skip
# A rate below this share of the highest is 0; a share of the training at its end may have it.
NO_RATE, LAST = 1e-15, 0.01


def check_schedule(runner: Runner) -> None:
    """Raise ValueError if the schedulers of a config fail in a trial without the model.

    The runner has its training loop and optimizer, and has not built the schedulers.
    """
    configs: Any = runner.param_schedulers or []
    loop = runner.train_loop
    by_iteration = isinstance(loop, IterBasedTrainLoop)
    for name, wrapper in optim_wrappers(runner.optim_wrapper).items():
        has_own = isinstance(configs, dict) and 'type' not in configs
        place = f'param_scheduler.{name}' if has_own else 'param_scheduler'
        chosen = configs[name] if has_own else configs
        chosen = chosen if isinstance(chosen, Sequence) else [chosen]
        has_list = any(isinstance(config.get('eta_max'), (list, tuple)) for config in chosen)
        stand_in, schedulers = _stand_in(wrapper, merged=not has_list), {}
        rate = wrapper.optimizer.defaults.get('lr')
        has_rates = any(group['lr'] != rate for group in stand_in.param_groups)
        for i, config in enumerate(chosen):
            options = ', '.join(f'{key}={value!r}' for key, value in config.items())
            where = f'{place}[{i}] ({options})'
            try:
                (scheduler,) = runner._build_param_scheduler(config, stand_in)
            except Exception as error:
                raise ValueError(f'{where}: {error_text(error)}') from error
            schedulers[where] = scheduler
            if isinstance(scheduler, OneCycleParamScheduler):
                scaled = bool((runner.auto_scale_lr or {}).get('enable'))
                _check_one_cycle(where, scheduler, has_rates, scaled)
            monitor = getattr(scheduler, 'monitor', None)
            check_monitor(f'{where}.monitor', monitor, runner.scores)
            if hasattr(scheduler, 'start_factor') and scheduler.total_iters < 1:
                raise ValueError(
                    f'{where} has one step, {scheduler.begin} to {scheduler.end}, and never leaves '
                    'start_factor: make it longer, or leave it out'
                )
            if scheduler.by_epoch and monitor is None and by_iteration:
                raise ValueError(
                    f'{where} counts epochs and never changes a value, since train_cfg counts '
                    'iterations: set by_epoch=False'
                )
            converted = config.get('convert_to_iter_based') and 'end' not in config
            if converted and by_iteration and scheduler.end < loop.max_iters:
                raise ValueError(
                    f'{where} ends after one epoch of the data, since train_cfg counts iterations: '
                    'set by_epoch=False without convert_to_iter_based, or end to the last epoch'
                )
        if schedulers:
            _check_rates(schedulers, stand_in, loop)


def _check_one_cycle(where: str, scheduler: Any, has_rates: bool, is_scaled: bool) -> None:
    """Raise ValueError if OneCycleLR, which sets all rates to eta_max, undoes other options."""
    lost = 'lr_mult or layer_decay_rate' if has_rates else '--auto-scale-lr' * is_scaled
    if lost and not isinstance(scheduler.eta_max, (list, tuple)):  # one for each group
        raise ValueError(
            f'{where} sets the learning rate of all parameters to eta_max, and {lost} would have '
            'no effect: leave that out, or take LinearLR and CosineAnnealingLR, which keep it'
        )


def _check_rates(schedulers: Dict[str, Any], stand_in: OptimWrapper, loop: Any) -> None:
    """Raise ValueError if a scheduler fails before the end of a training, or the rate is 0."""
    end, length = loop.max_iters, _epoch_length(loop)
    with quiet():
        rates = [
            max(group['lr'] for group in stand_in.param_groups)
            for _ in _steps(schedulers, end, loop.max_epochs, length)
        ]
    least = NO_RATE * max(rates, default=0)
    last = max((i for i, rate in enumerate(rates, 1) if rate > least), default=end)
    if end - last > max(length or 1, LAST * end):
        raise ValueError(
            f'{", ".join(schedulers)}: the learning rate is 0 after iteration {last} of {end}; '
            'make the schedule as long as the training'
        )


@contextmanager
def schedule_of_config(runner: Runner) -> Iterator[None]:
    """Keep the schedule and the optimizer options of the config while a checkpoint is resumed.

    MMEngine takes both from the checkpoint, so that edits in the config would have no effect. If
    they differ, a warning names the differences. Moments of the optimizer are loaded.
    """
    wrappers, found = optim_wrappers(runner.optim_wrapper).values(), runner.param_schedulers or []
    schedulers = [*chain(*found.values())] if isinstance(found, dict) else found
    options = [{**vars(scheduler)} for scheduler in schedulers]
    groups = [{**group} for wrapper in wrappers for group in wrapper.param_groups]
    yield
    loop, length = runner.train_loop, _epoch_length(runner.train_loop)
    length_then = length_before(runner.message_hub.runtime_info)
    start = loop.epoch * length
    if length and (length_then not in (0, length) or not start <= loop.iter <= start + length):
        other = length_then or 'another number'
        log_warning(
            f'An epoch has {length} iterations, in the checkpoint {other}: its iteration '
            f'{loop.iter} becomes {start}, where epoch {loop.epoch + 1} begins.'
        )
        loop._iter = start
    if loop.epoch >= loop.max_epochs if length else loop.iter >= loop.max_iters:
        limit = f'max_epochs={loop.max_epochs}' if length else f'max_iters={loop.max_iters}'
        log_warning(f'Nothing is left to train: the checkpoint has reached train_cfg.{limit}.')
        return
    loaded = [group for wrapper in wrappers for group in wrapper.param_groups]
    scheduled = {scheduler.param_name for scheduler in schedulers}
    scheduled.update(['betas'] if 'momentum' in scheduled else [])
    changed = _differences('optimizer', groups, loaded, {'params', *scheduled})
    for scheduler, before in zip(schedulers, options):
        if min(scheduler.end, before['end']) >= scheduler._global_step:
            scheduler.end = before['end']  # no step so far depends on it
        changed += _differences(type(scheduler).__name__, [before], [vars(scheduler)], STATE)
        if scheduler._global_step != (loop.epoch if scheduler.by_epoch else loop.iter):
            changed.append(f'the steps of {type(scheduler).__name__}')
    if not changed:
        return
    # Their steps follow the scores, which are in the loaded state alone.
    by_score = [each for each in schedulers if getattr(each, 'need_val_args', False)]
    kept = {each.param_name for each in by_score}
    for group, before in zip(loaded, groups):
        group.update((key, value) for key, value in before.items() if key not in {'params', *kept})
    replayed = {}
    for i, (scheduler, before) in enumerate(zip(schedulers, options)):
        if scheduler in by_score:
            vars(scheduler).update((k, v) for k, v in before.items() if k not in STATE)
        elif scheduler.param_name not in kept:
            vars(scheduler).clear()
            vars(scheduler).update(before)
            replayed[f'param_scheduler[{i}]'] = scheduler
    with quiet():
        [*_steps(replayed, loop.iter, loop.epoch, length)]
    log_warning(
        f'The config has another schedule or optimizer than the checkpoint: {"; ".join(changed)}. '
        f'That of the config holds from iteration {loop.iter} on.'
    )


def _stand_in(wrapper: OptimWrapper, merged: bool) -> OptimWrapper:
    """Return a copy of an optimizer; ``merged``, with one group for each set of options."""
    optimizer = copy.copy(wrapper.optimizer)
    groups = [{**group} for group in optimizer.param_groups]
    if merged:  # for quick steps
        groups = [*{repr({**group, 'params': ()}): group for group in groups}.values()]
    optimizer.param_groups = groups
    return OptimWrapper(optimizer)


def _epoch_length(loop: Any) -> int:
    """Return the number of iterations in an epoch, 0 for a training by iterations."""
    return len(loop.dataloader) if isinstance(loop, EpochBasedTrainLoop) else 0


def _steps(schedulers: Dict[str, Any], iterations: int, epochs: int, length: int) -> Iterator[int]:
    """Yield each iteration, then step the schedulers as MMEngine's ParamSchedulerHook does."""
    for done in range(1, iterations + 1):
        yield done
        ends_epoch = length and done % length == 0 and done // length <= epochs
        for by_epoch in (False, True)[: 2 if ends_epoch else 1]:
            for where, scheduler in schedulers.items():
                if scheduler.by_epoch != by_epoch:
                    continue
                try:
                    scheduler.step()
                except Exception as error:
                    text = f'fails after {done} of {iterations} iterations: {error_text(error)}'
                    raise ValueError(f'{where} {text}') from error


def _differences(
    name: str, options: Sequence[dict], loaded: Sequence[dict], ignored: Set[str]
) -> List[str]:
    """Return the names of options that differ, numbers with both values."""
    found = {}
    for new, old in zip(options, loaded):
        for key in (new.keys() | old.keys()) - ignored:  # of another class, too
            value, was = new.get(key), old.get(key)
            if value != was:
                is_plain = isinstance(was, (int, float, tuple))
                values = f' is {value}, was {was}' if is_plain else ''
                found[key] = f'{name}.{key.lstrip("_")}{values}'
    return [found[key] for key in sorted(found)]
