"""Hook that saves a checkpoint on SIGTERM or SIGINT and ends with a distinct exit code."""

import os
import signal
import threading
import time
from types import FrameType
from typing import Any, Callable, Optional

from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import BaseLoop, IterBasedTrainLoop, Runner
from torch.utils.data import DataLoader

from ...utils.command_line import SAME_SIGNAL_S
from ..distributed.launch import any_process, cpu_group
from ..runner.train_loop import ResumableEpochLoop
from .checkpoint_hook import AtomicCheckpointHook

SIGNALS = (signal.SIGTERM, signal.SIGINT)
# EX_TEMPFAIL of sysexits.h (try again). A process killed by a signal has 128 + its number.
EXIT_CODE = 75


class Preempted(SystemExit):
    """Exit of a training after its state was saved, with the code :data:`EXIT_CODE`."""

    def __init__(self, path: str) -> None:
        super().__init__(EXIT_CODE)
        self.path = path


@HOOKS.register_module()
class PreemptionHook(Hook):
    """Hook that saves the state of the training on SIGTERM or SIGINT and exits with code 75.

    Schedulers send these signals before they take a machine away. The state is saved after the
    current iteration. ``--resume`` continues from it with the result of an uninterrupted run (see
    :class:`ExactResumeHook`).

    A second signal, more than 5 seconds later, ends the process at once. With gradient
    accumulation the accumulated step is finished first. A validation is also finished, after
    everything is saved; if the machine goes down meanwhile, the validation is not repeated.
    ``mmlinattn train`` uses the hook; it needs an :class:`AtomicCheckpointHook`.

    Example:
        >>> custom_hooks = [dict(type='ExactResumeHook'), dict(type='PreemptionHook')]
    """

    # After CheckpointHook, which has the same priority and is registered earlier.
    priority = 'VERY_LOW'

    def __init__(self) -> None:
        self.received: Optional[int] = None
        self.received_at = 0.0
        self.group: Any = None
        self.previous: dict = {}
        self.training = False

    def before_run(self, runner: Runner) -> None:
        # The training loop is not built for a test.
        if isinstance(runner._train_loop, BaseLoop):
            self._checkpoint_hook(runner)
            _keep_workers(runner.train_dataloader)

    def before_train(self, runner: Runner) -> None:
        loop = runner.train_loop
        if not isinstance(loop, (ResumableEpochLoop, IterBasedTrainLoop)):
            runner.logger.warning(
                f'{type(loop).__name__}: a training that is told to stop inside an epoch resumes '
                'at the start of it'
            )
        self.group = cpu_group(runner.cfg)
        if threading.current_thread() is threading.main_thread():
            self.previous = {number: signal.signal(number, self._note) for number in SIGNALS}
        self.training = True

    def before_val(self, runner: Runner) -> None:
        _keep_workers(runner.val_dataloader)

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        wrapper = runner.optim_wrapper
        counts = getattr(wrapper, '_inner_count', 0), getattr(wrapper, '_accumulative_counts', 1)
        if counts[0] % counts[1] == 0 and self._any_process_stopped():
            self._stop(runner, runner.iter + 1, wait=_validates_now(runner))

    def after_val_epoch(self, runner: Runner, metrics: Optional[dict] = None) -> None:
        if self.training and self._any_process_stopped():
            self._stop(runner, runner.iter)

    def after_train(self, runner: Runner) -> None:
        self._restore()

    def _stop(self, runner: Runner, iteration: int, wait: bool = False) -> None:
        """Save unsaved state and end the training, unless it is complete or ``wait`` is set."""
        if iteration >= runner.max_iters:
            return
        hook = self._checkpoint_hook(runner)
        if hook.saved_iter != iteration:
            hook.save_interrupted(runner, iteration)
        if wait:
            return
        self._restore()
        why = signal.Signals(self.received).name if self.received else 'A signal to another process'
        runner.logger.warning(
            f'{why}: stopped after iteration {iteration}; --resume goes on from {hook.last_ckpt}'
        )
        raise Preempted(hook.last_ckpt)

    @staticmethod
    def _checkpoint_hook(runner: Runner) -> AtomicCheckpointHook:
        for hook in runner.hooks:
            if isinstance(hook, AtomicCheckpointHook):
                return hook
        raise ValueError('PreemptionHook needs an AtomicCheckpointHook in default_hooks')

    def _note(self, number: int, frame: Optional[FrameType]) -> None:
        if self.received is None:
            self.received, self.received_at = number, time.monotonic()
            # Logging is not safe inside a signal handler.
            os.write(2, b'Told to stop: after this iteration, or this validation.\n')
        elif time.monotonic() - self.received_at > SAME_SIGNAL_S:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    def _any_process_stopped(self) -> bool:
        return any_process(self.received is not None, self.group)

    def _restore(self) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)
        self.previous = {}
        self.training = False


def _validates_now(runner: Runner) -> bool:
    """Return True if a validation follows this iteration; a resumed training would skip it."""
    loop, done = runner.train_loop, runner.iter + 1
    return (
        isinstance(loop, IterBasedTrainLoop)
        and runner.val_loop is not None
        and done >= loop.val_begin
        and done % loop.val_interval == 0
    )


class _IgnoreSignals:
    """Initialiser of a data-loader worker that ignores signals except those of the main process.

    Schedulers and Ctrl-C in a terminal signal all processes at once, but the current iteration
    still needs its data.
    """

    def __init__(self, init: Optional[Callable[[int], None]]) -> None:
        self.init = init

    def __call__(self, worker_id: int) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if hasattr(signal, 'sigwaitinfo'):  # Linux; elsewhere only Ctrl-C is covered
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            threading.Thread(target=_end_with_parent, daemon=True).start()
        if self.init is not None:
            self.init(worker_id)


def _end_with_parent() -> None:
    """Exit on SIGTERM from the parent process, by which Python ends its children."""
    while True:
        if signal.sigwaitinfo({signal.SIGTERM}).si_pid == os.getppid():
            os._exit(0)


def _keep_workers(loader: DataLoader) -> None:
    if not isinstance(loader.worker_init_fn, _IgnoreSignals):
        loader.worker_init_fn = _IgnoreSignals(loader.worker_init_fn)
