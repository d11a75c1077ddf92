"""A training that is resumed by another number of processes, or with other batches."""

import logging
from typing import Any, Dict, List

from mmengine.dist import get_world_size
from mmengine.logging import print_log
from mmengine.optim import _ParamScheduler
from mmengine.runner import Runner

# In the message hub, and with it in every checkpoint.
PROCESSES, BATCH = 'processes', 'batch_of_a_process'
# Of a scheduler's state: what comes from the training so far. All else is how it was built.
PROGRESS = ('base_values', 'last_step', '_global_step', '_last_value')


def say_what_changed(runner: Runner) -> None:
    """Warns when a resumed training has another number of processes or images in a batch than the
    checkpoint, and keeps these numbers for the next one."""
    loader = runner.train_dataloader
    batch = loader.batch_size or getattr(loader.batch_sampler, 'batch_size', None)
    now = (get_world_size(), batch)
    hub = runner.message_hub
    then = (hub.runtime_info.get(PROCESSES), hub.runtime_info.get(BATCH))
    hub.update_info_dict({PROCESSES: now[0], BATCH: now[1]})
    # Older checkpoints do not say, nor do samplers of batches that have no one size.
    if None in now + then or now == then:
        return
    images = now[0] * now[1], then[0] * then[1]
    step = (
        f'A step has {images[0]} images as before'
        if images[0] == images[1]
        else f'A step has {images[0]} images in place of {images[1]}, at the learning rate of the '
        'checkpoint'
    )
    print_log(
        f'Resumed with {now[0]} processes of {now[1]} images each; the checkpoint is of '
        f'{then[0]} of {then[1]}. {step}. Images come in the same shuffled order, dealt out to the '
        'processes anew; dropout and what else is random in the model draws other numbers.',
        'current',
        level=logging.WARNING,
    )


def lengths_of(schedulers: Any) -> List[Dict[str, Any]]:
    """How parameter schedulers were built, see :func:`stretch`."""
    return [
        {k: v for k, v in s.state_dict().items() if k not in PROGRESS} for s in _each(schedulers)
    ]


def stretch(schedulers: Any, built: List[Dict[str, Any]], iteration: int) -> None:
    """Schedules that are given in epochs and count iterations keep their place in epochs when an
    epoch has another number of iterations than that of the checkpoint they were loaded from.

    Args:
        schedulers: of a runner.
        built: what :func:`lengths_of` gave before they were loaded.
        iteration: number of iterations that the training has now.
    """
    for scheduler, lengths in zip(_each(schedulers), built):
        if any(scheduler.state_dict()[name] != value for name, value in lengths.items()):
            scheduler.load_state_dict(
                {**lengths, 'last_step': iteration, '_global_step': iteration}
            )


def _each(schedulers: Any) -> List[_ParamScheduler]:
    """None, not built, a list, or a dict of them by name of the optimizer."""
    lists = schedulers.values() if isinstance(schedulers, dict) else [schedulers or []]
    return [s for each in lists for s in each if isinstance(s, _ParamScheduler)]
