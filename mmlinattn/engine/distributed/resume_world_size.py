"""Resume with a different world size or batch size."""

import warnings
from typing import Any, Dict, List

from mmengine.dataset import DefaultSampler, InfiniteSampler
from mmengine.dist import get_world_size
from mmengine.optim import _ParamScheduler
from mmengine.optim.scheduler import ReduceOnPlateauParamScheduler
from mmengine.runner import Runner
from torch.utils.data import BatchSampler, DataLoader

from ...utils.messages import log_warning

# Keys of world size and batch size in the message hub, which every checkpoint contains.
PROCESSES, BATCH = 'processes', 'batch_of_a_process'
# Progress in the state of a scheduler. The other entries are arguments of its construction.
PROGRESS = ('base_values', 'last_step', '_global_step', '_last_value')


def warn_on_world_size_change(runner: Runner) -> bool:
    """Warn if a resumed training has another world size or batch size than the checkpoint.

    The new sizes are stored for the next checkpoint.

    Returns:
        True if a begun epoch cannot be continued, since its steps would have other images.
    """
    loader = runner.train_dataloader
    batch = loader.batch_size or getattr(loader.batch_sampler, 'batch_size', None)
    now = (get_world_size(), batch)
    hub = runner.message_hub
    then = (hub.runtime_info.get(PROCESSES), hub.runtime_info.get(BATCH))
    hub.update_info_dict({PROCESSES: now[0], BATCH: now[1]})
    if then[0] is None or now == then:  # older checkpoints do not record the sizes
        return False
    sampler = _dealing_by_processes(runner.train_dataloader)
    order = (
        f'{sampler} deals out the images in another order'
        if sampler
        else 'Images come in the same shuffled order, dealt out to the processes anew'
    )
    step, other_step = 'The images of a step are not known', True
    if None not in now + then:
        images = now[0] * now[1], then[0] * then[1]
        other_step = images[0] != images[1]
        step = f'A step has {images[0]} images ' + (
            f'in place of {images[1]}, at the learning rate of the checkpoint'
            if other_step
            else 'as before'
        )
    log_warning(
        f'Resumed with {now[0]} processes of {now[1]} images each; the checkpoint is of '
        f'{then[0]} of {then[1]}. {step}. {order}; dropout and what else is random in the model '
        'draws other numbers.'
    )
    return other_step or bool(sampler)


def _dealing_by_processes(loader: DataLoader) -> str:
    """Return the class name of a sampler whose order may depend on the world size.

    The order of MMEngine's samplers does not; their name is returned as ''.
    """
    batches = loader.batch_sampler
    if type(batches) is not BatchSampler:
        return type(batches).__name__
    sampler = type(batches.sampler)
    return '' if sampler in (DefaultSampler, InfiniteSampler) else sampler.__name__


def schedule_lengths(schedulers: Any) -> List[Dict[str, Any]]:
    """Return the construction arguments of parameter schedulers, for :func:`replay`."""
    return [
        {k: v for k, v in s.state_dict().items() if k not in PROGRESS} for s in _each(schedulers)
    ]


def replay(schedulers: Any, built: List[Dict[str, Any]], iteration: int, same_length: bool) -> None:
    """Move schedules and learning rates to the start of an epoch, where a training resumes.

    MMEngine's schedulers compute each value from the previous one. All of them therefore restart
    from the initial values of the checkpoint's optimizer and repeat their steps. A schedule that
    counts iterations ends at ``iteration``. If the epoch length has changed, only a schedule given
    in epochs, with ``convert_to_iter_based``, ends there. One given in iterations keeps its
    iteration. Nothing is done if no schedule moves.

    Args:
        schedulers: schedulers of a runner, loaded from the checkpoint, as are their optimizers.
        built: result of :func:`schedule_lengths` before they were loaded.
        iteration: current number of iterations of the training.
        same_length: True if the number of iterations per epoch equals that of the checkpoint.

    Raises:
        ValueError: a scheduler follows a metric, whose history is not in the checkpoint.
    """
    every = _each(schedulers)
    steps = [s._global_step for s in every]
    moved = False
    for number, (scheduler, lengths) in enumerate(zip(every, built)):
        state = scheduler.state_dict()
        if scheduler.by_epoch or _follows_metric(scheduler):
            continue
        if same_length:
            moved |= steps[number] != iteration
            steps[number] = iteration
        elif any(state[name] != value for name, value in lengths.items()):
            scheduler.load_state_dict(lengths)
            moved, steps[number] = True, iteration
    if not moved:
        return
    for scheduler in every:
        if _follows_metric(scheduler):
            raise ValueError(
                f'param_scheduler: the training would go on at the start of an epoch, and '
                f'{type(scheduler).__name__} cannot be put back to there; resume with the number '
                'of processes and the batch size of the checkpoint'
            )
    with warnings.catch_warnings():
        # torch warns that the schedulers step before the optimizer.
        warnings.filterwarnings('ignore', 'Detected call of `scheduler.step')
        _step_anew(every, steps)


def _step_anew(schedulers: List[_ParamScheduler], steps: List[int]) -> None:
    verbose = [s.verbose for s in schedulers]
    for scheduler in schedulers:
        scheduler.load_state_dict(dict(last_step=-1, _global_step=-1, verbose=False))
        for group in scheduler.optimizer.param_groups:
            group[scheduler.param_name] = group[f'initial_{scheduler.param_name}']
    for scheduler in schedulers:
        scheduler.step()  # the constructor also takes this step
    # A training loop steps schedulers by epoch after those by iteration.
    order = sorted(zip(schedulers, steps), key=lambda pair: pair[0].by_epoch)
    last = max(steps)
    for now in range(1, last + 1):
        for scheduler, end in order:
            if scheduler._global_step < now * end // last:
                scheduler.step()
    for scheduler, value in zip(schedulers, verbose):
        scheduler.verbose = value


def _follows_metric(scheduler: _ParamScheduler) -> bool:
    return isinstance(scheduler, ReduceOnPlateauParamScheduler)


def _each(schedulers: Any) -> List[_ParamScheduler]:
    """Return a list of schedulers, given as None, a list, or a dict by name of the optimizer."""
    lists = schedulers.values() if isinstance(schedulers, dict) else [schedulers or []]
    return [s for each in lists for s in each if isinstance(s, _ParamScheduler)]
