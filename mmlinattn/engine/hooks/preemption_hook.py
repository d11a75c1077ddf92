"""Hook that saves a checkpoint on SIGTERM or SIGINT and ends with a distinct exit code."""

import os
import signal
import threading
from functools import partial
from pathlib import Path
from typing import Any, Callable, Optional

import torch
from mmengine.dist import barrier, is_distributed, is_main_process
from mmengine.hooks import Hook
from mmengine.optim import OptimWrapper
from mmengine.registry import HOOKS
from mmengine.runner import BaseLoop, EpochBasedTrainLoop, Runner
from torch import distributed as dist
from torch.utils.data import DataLoader

from ...utils import write_text
from ...utils.errors import InputError
from ..model import optim_wrappers
from .checkpoint_hook import LAST, atomic_backend
from .exact_resume_hook import ExactResumeHook

SIGNALS = (signal.SIGTERM, signal.SIGINT)
INTERRUPTED = 'interrupted.pth'
# EX_TEMPFAIL of sysexits.h (try again). A process killed by a signal has 128 + its number.
EXIT_CODE = 75


class Preempted(SystemExit):
    """Exit of a training after its state was saved, with the code :data:`EXIT_CODE`."""


@HOOKS.register_module()
class PreemptionHook(Hook):
    """Hook that saves the state of the training on SIGTERM or SIGINT and exits with code 75.

    Schedulers send these signals before they take a machine away. The state is saved after the
    current iteration as ``interrupted.pth`` of the work directory, which ``last_checkpoint`` then
    names. A validation and the steps of one gradient accumulation are finished first; a training
    by iterations leaves out a validation that would follow the last one. To end at once, use
    SIGKILL.

    Raises:
        InputError: a training by epochs without :class:`ExactResumeHook`, which MMEngine would
            resume at the start of the epoch with a schedule that is ahead.

    Example:
        >>> custom_hooks = [dict(type='ExactResumeHook'), dict(type='PreemptionHook')]
    """

    priority = 'LOWEST'  # after hooks that change the state, and the checkpoint hook

    def __init__(self) -> None:
        self.received = False
        self.group: Any = None
        self.previous: dict = {}

    def before_run(self, runner: Runner) -> None:
        if isinstance(runner._train_loop, BaseLoop):  # not built for a test
            _keep_workers(runner.train_dataloader)

    def before_train(self, runner: Runner) -> None:
        exact = any(isinstance(hook, ExactResumeHook) for hook in runner.hooks)
        if isinstance(runner.train_loop, EpochBasedTrainLoop) and not exact:
            raise InputError(
                "PreemptionHook saves inside an epoch: add dict(type='ExactResumeHook') to "
                'custom_hooks, which resumes there'
            )
        # Flags on the CPU: with NCCL every iteration would wait for the GPU.
        self.group = dist.new_group(backend='gloo') if is_distributed() else None
        if threading.current_thread() is threading.main_thread():
            self.previous = {number: signal.signal(number, self._note) for number in SIGNALS}

    def before_val(self, runner: Runner) -> None:
        _keep_workers(runner.val_dataloader)

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        wrappers, done = optim_wrappers(runner.optim_wrapper).values(), runner.iter + 1
        # Optimizer wrappers of other classes accumulate no gradients.
        steps = [each.should_update() for each in wrappers if isinstance(each, OptimWrapper)]
        if not all(steps) or done >= runner.max_iters:
            return
        received = torch.tensor(int(self.received))
        if self.group is not None:
            dist.all_reduce(received, dist.ReduceOp.MAX, group=self.group)
        if not received:
            return
        options: dict = dict(by_epoch=False, backend_args=atomic_backend())
        runner.save_checkpoint(runner.work_dir, INTERRUPTED, **options)
        path = Path(runner.work_dir) / INTERRUPTED
        if is_main_process():
            write_text(path.with_name(LAST), str(path))
        barrier(self.group)
        self._restore()
        runner.logger.warning(f'Stopped after iteration {done}; --resume continues from {path}')
        raise Preempted(EXIT_CODE)

    def after_train(self, runner: Runner) -> None:
        self._restore()
        path = Path(runner.work_dir) / INTERRUPTED
        last = path.with_name(LAST)
        named = last.read_text().strip() if last.is_file() else INTERRUPTED
        # A training that ends early, as by EarlyStoppingHook, may have saved nothing since.
        if is_main_process() and Path(named).name != INTERRUPTED:
            path.unlink(missing_ok=True)

    def _note(self, number: int, frame: Any) -> None:
        self.received = True
        # Logging is not safe inside a signal handler.
        os.write(2, b'Told to stop: after this iteration, or this validation.\n')

    def _restore(self) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)
        self.previous = {}


def _keep_workers(loader: DataLoader) -> None:
    """Let data-loader workers ignore a signal to all processes: the iteration needs its data."""
    init = loader.worker_init_fn
    if getattr(init, 'func', None) is not _ignore_signals:
        loader.worker_init_fn = partial(_ignore_signals, init)


def _ignore_signals(init: Optional[Callable[[int], None]], worker_id: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, 'sigwaitinfo'):  # Linux; elsewhere only Ctrl-C is covered
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_end_with_parent, daemon=True).start()
    if init is not None:
        init(worker_id)


def _end_with_parent() -> None:
    """Exit on SIGTERM from the parent process, by which Python ends its children."""
    while True:
        if signal.sigwaitinfo({signal.SIGTERM}).si_pid == os.getppid():
            os._exit(0)
