"""Trial of a validation on its first images before a training starts."""

import copy
import random

import numpy as np
import torch
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop, Runner, ValLoop, autocast

from ...checkpoints import CheckpointError
from ...utils.command_line import error_text
from ...utils.errors import InputError
from ..model import unwrapped
from .evaluators import SAMPLES
from .sample_loading import base_datasets

# By a part of the message of torch.
CURES = {
    'Sizes of tensors must match': 'where a neck joins levels set '
    'model.data_preprocessor.pad_size_divisor to its largest stride, such as 32',
    'selected index k out of range': 'there are fewer queries (times classes, but for a softmax) '
    'than max_per_img or max_per_image in model.test_cfg or model.test_cfg.rcnn: lower that',
}


@torch.no_grad()
def try_validation(runner: Runner) -> None:
    """Raise InputError if the first images of a validation cannot be predicted or scored.

    Random numbers, metrics and the mode of the model are left as they were. What other code may
    prepare is not tried: loops and hooks of others, data sets that are opened in a worker.
    """
    train, loop, model = runner.train_loop, runner.val_loop, runner.model
    known = type(train) in (EpochBasedTrainLoop, IterBasedTrainLoop) and type(loop) is ValLoop
    prepared = hasattr(unwrapped(model), 'prepare_prototype') or any(  # of MMPretrain's retrievers
        {*hook.get_triggered_stages()} - {'after_val_iter', 'after_test_iter'}
        for hook in runner.hooks
        if type(hook).__module__.partition('.')[0] not in ('mmengine', 'mmlinattn')
    )
    if not known or train.val_begin > 1 or prepared:
        return
    loader = loop.dataloader
    in_worker = loader.num_workers and not [*base_datasets(loader.dataset)]
    if loader.batch_sampler is None or in_worker:
        return
    states = random.getstate(), np.random.get_state()
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    was_training, evaluator = model.training, copy.copy(loop.evaluator)
    try:
        with torch.random.fork_rng(devices), autocast(enabled=loop.fp16):
            indices = next(iter(loader.batch_sampler))[:2]  # enough for what cannot be stacked
            batch = loader.collate_fn([loader.dataset[i] for i in indices])
            model.eval()
            found = model.val_step(batch)[: len(indices)]  # a loss may follow
        evaluator.metrics = [copy.copy(m) for m in evaluator.metrics if type(m).__name__ in SAMPLES]
        for metric in evaluator.metrics:
            metric.results = []
        evaluator.process(found, batch)
    except Exception as error:
        if isinstance(error, (CheckpointError, InputError)):
            raise
        text = f'{type(error).__name__}: {error_text(error)}'
        cures = [cure for part, cure in CURES.items() if part in text]
        cures.append('if trained weights could be validated, train_cfg.val_begin=2 skips this')
        raise InputError(
            'the validation, tried before the training, fails on its first images: '
            + '; '.join([text, *cures])
        ) from error
    finally:
        model.train(was_training)
        random.setstate(states[0])
        np.random.set_state(states[1])
