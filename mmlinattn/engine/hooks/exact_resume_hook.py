"""Hook by which an interrupted training ends with the weights of an uninterrupted one."""

import random
from functools import partial
from typing import Any, Dict, Iterator, List, Optional, Tuple

import numpy as np
import torch
from mmengine.dataset import InfiniteSampler
from mmengine.dist import get_rank, get_world_size
from mmengine.hooks import EarlyStoppingHook, Hook
from mmengine.optim import OptimWrapper
from mmengine.registry import HOOKS
from mmengine.runner import EpochBasedTrainLoop, Runner

from ...utils.errors import InputError
from ..model import length_before, optim_wrappers, unwrapped

_MODEL, _DATA = 0, 1
# Keys of a checkpoint: gradients between two steps, and what each EarlyStoppingHook remembers.
ACCUMULATED, WAITED, SAMPLER_SEED = 'accumulated', 'early_stopping', 'sampler_seed'
Key = Tuple[int, ...]  # of the random numbers of a sample


def seed_everything(*key: int) -> None:
    """Seed Python, NumPy and torch (every device) from non-negative integers.

    Example:
        >>> seed_everything(0, 3); a = torch.rand(2)
        >>> seed_everything(0, 3); bool((a == torch.rand(2)).all())
        True
    """
    words = np.random.SeedSequence(key).generate_state(4)
    random.seed(int(words[0]))
    np.random.seed(words[1])
    torch.manual_seed(int(words[2]) << 32 | int(words[3]))


@HOOKS.register_module()
class ExactResumeHook(Hook):
    """Hook that makes every random number of training a function of the seed and the iteration.

    Dropout, stochastic depth and random samplers are seeded by (seed, rank, iteration), data
    augmentation by (seed, epoch, position in the stream of samples). A resumed run therefore draws
    the same numbers as an uninterrupted one, with any number of data-loader workers. A checkpoint
    from inside an epoch continues with the remaining batches of that epoch. Without the hook
    MMEngine restarts its random generators and the epoch.

    A checkpoint from inside a gradient accumulation has the gradients of its steps so far, in a
    training of one process. With several, which have gradients of their own, it logs a warning.

    Each EarlyStoppingHook remembers its best score and how long it waited. A validation that came
    after the checkpoint is repeated.

    The weights are equal if the arithmetic is deterministic: on a CPU it is, on a GPU set
    ``randomness=dict(deterministic=True)``.

    Raises:
        InputError: when the training starts, its data loader has no batch sampler, or the
            checkpoint is of epochs with another number of batches.

    Example:
        >>> custom_hooks = [dict(type='ExactResumeHook')]
    """

    priority = 'VERY_HIGH'

    accumulated: dict = {}  # of the checkpoint, as is the information of its message hub
    info: dict = {}
    waited: Dict[str, Tuple[int, float]] = {}  # of each EarlyStoppingHook, by its score
    sampler_seed: Optional[int] = None

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        waited = _early_stopping(runner)
        if waited:
            checkpoint[WAITED] = {h.monitor: (h.wait_count, float(h.best_score)) for h in waited}
        if self.sampler_seed is not None:
            checkpoint[SAMPLER_SEED] = self.sampler_seed
        wrappers = optim_wrappers(runner.optim_wrapper)
        # Optimizer wrappers of other classes accumulate no gradients.
        wrappers = {name: each for name, each in wrappers.items() if isinstance(each, OptimWrapper)}
        is_closed = all(wrapper.should_update() for wrapper in wrappers.values())
        if is_closed or 'optimizer' not in checkpoint:  # of which nothing resumes exactly
            return
        counts = {name: wrapper._inner_count for name, wrapper in wrappers.items()}
        parameters = unwrapped(runner.model).named_parameters()
        gradients = {name: p.grad.cpu() for name, p in parameters if p.grad is not None}
        if gradients and get_world_size() > 1:
            runner.logger.warning(
                'This checkpoint cannot be resumed exactly: it lacks the gradients that each '
                'process accumulated. Save at multiples of optim_wrapper.accumulative_counts'
            )
        elif gradients:
            scales = {name: _loss_scale(wrapper) for name, wrapper in wrappers.items()}
            checkpoint[ACCUMULATED] = dict(counts=counts, gradients=gradients, scales=scales)

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        self.sampler_seed = checkpoint.get(SAMPLER_SEED) if runner and runner._resume else None
        self.accumulated = checkpoint.get(ACCUMULATED, {})
        self.info = checkpoint.get('message_hub', {}).get('runtime_info', {})
        self.waited = checkpoint.get(WAITED, {})

    def before_run(self, runner: Runner) -> None:
        late = Hook()  # after the hooks that a validation needs
        late.before_train = self._restore_early_stopping
        runner.register_hook(late, priority='LOWEST')

    def before_train(self, runner: Runner) -> None:
        self._restore_gradients(runner)
        loader, loop = runner.train_dataloader, runner.train_loop
        if loader.batch_sampler is None:
            raise InputError('ExactResumeHook needs a data loader with a batch sampler')
        sampler = loader.batch_sampler.sampler
        if self.sampler_seed is not None:  # MMEngine draws another before it reads the checkpoint
            sampler.seed = self.sampler_seed
        self.sampler_seed = getattr(sampler, 'seed', None)
        batches = KeyedBatches(loader.batch_sampler, runner.seed)
        loader.dataset.__getitems__ = partial(_fetch, loader.dataset)
        # DataLoader forbids the plain assignment.
        object.__setattr__(loader, 'batch_sampler', batches)
        if isinstance(loop, EpochBasedTrainLoop):
            is_resumed = runner._resume or runner.iter or runner.epoch
            before = length_before(self.info) if is_resumed else 0
            batches.start = _batches_done(runner, len(loader), before)
            return
        if isinstance(sampler, InfiniteSampler):
            # MMEngine has read from the endless stream; newer versions call ``sampler.skip``.
            sampler.indices = sampler._indices_of_rank()
            object.__setattr__(loader, 'sampler', batches)
        # The loop may hold an iterator with the previous sampler.
        loader._iterator = None
        loop.dataloader_iterator = type(loop.dataloader_iterator)(loader)

    def _restore_gradients(self, runner: Runner) -> None:
        found, self.accumulated = self.accumulated, {}
        if not found or runner.iter == 0:  # a new training from the weights
            return
        for name, parameter in unwrapped(runner.model).named_parameters():
            if parameter.requires_grad and name in found['gradients']:
                parameter.grad = found['gradients'][name].to(parameter)
        for name, wrapper in optim_wrappers(runner.optim_wrapper).items():
            own, scale = _loss_scale(wrapper), found['scales'][name]
            if scale != own:
                raise InputError(
                    f'the accumulated gradients of the checkpoint have a loss scale of {scale}, '
                    f'here it is {own}: resume with the same optim_wrapper, and --amp, on such a '
                    'device'
                )
            wrapper._inner_count = found['counts'][name]
        runner.logger.info("Restored the accumulated gradients that MMEngine's warning calls lost.")

    def _restore_early_stopping(self, runner: Runner) -> None:
        """Restore what hooks remember, and repeat a validation that came after the checkpoint."""
        hooks = [hook for hook in _early_stopping(runner) if hook.monitor in self.waited]
        if not hooks or not runner.iter or runner.val_loop is None:
            return
        for hook in hooks:
            hook.wait_count, hook.best_score = self.waited[hook.monitor]
        loop, done = runner.train_loop, runner.iter
        if isinstance(loop, EpochBasedTrainLoop):
            done = runner.epoch if done == runner.epoch * len(runner.train_dataloader) else 0
        loop._decide_current_val_interval()
        if done and done >= loop.val_begin and done % loop.val_interval == 0:
            runner.logger.info('Validating again, as the checkpoint was saved before its scores.')
            runner.val_loop.run()

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        seed_everything(runner.seed, _MODEL, get_rank(), runner.iter)


def _loss_scale(wrapper: OptimWrapper) -> float:
    """Return the factor of the gradients that a wrapper accumulates."""
    scaler = getattr(wrapper, 'loss_scaler', None)
    return 1.0 if scaler is None else scaler.get_scale()


def _early_stopping(runner: Runner) -> List[EarlyStoppingHook]:
    return [hook for hook in runner.hooks if isinstance(hook, EarlyStoppingHook)]


def _batches_done(runner: Runner, batches: int, before: int) -> int:
    """Return how many batches of its epoch a training has done; ``before``: in the checkpoint."""
    done = runner.iter - runner.epoch * batches
    if before not in (0, batches) or not 0 <= done <= batches:
        raise InputError(
            f'an epoch has {batches} batches, in the checkpoint {before or "another number"}: '
            'resume with its batch size, number of processes and data, or start from its weights '
            'with load_from'
        )
    if done:
        runner.logger.info(f'Resumed after batch {done} of {batches} of epoch {runner.epoch + 1}.')
    return done


class KeyedBatches:
    """Batch sampler that gives each sample of another one the key of its random numbers.

    A batch is a list of (index, key). Keys are (seed, epoch, position over all processes). The next
    iteration leaves out the first ``start`` batches.
    """

    def __init__(self, batches: Any, seed: int) -> None:
        self.batches, self.seed, self.start = batches, seed, 0

    def __iter__(self) -> Iterator[List[Tuple[int, Key]]]:
        start, self.start = self.start, 0
        epoch = getattr(self.batches.sampler, 'epoch', 0)
        position, step = get_rank(), get_world_size()
        for number, indices in enumerate(self.batches):
            places = range(position, position + step * len(indices), step)
            position += step * len(indices)
            if number >= start:
                yield [(i, (self.seed, _DATA, epoch, place)) for i, place in zip(indices, places)]

    def __len__(self) -> int:
        return len(self.batches)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__['batches'], name)

    def skip(self, num_samples: int) -> None:
        """Leave out samples of the endless stream, as MMEngine does to resume."""
        self.start = num_samples // self.batches.batch_size


def _fetch(dataset: Any, batch: List[Tuple[int, Key]]) -> list:
    samples = []
    for index, key in batch:
        seed_everything(*key)
        samples.append(dataset[index])
    return samples
