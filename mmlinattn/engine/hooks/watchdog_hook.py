"""Watchdog that ends a stalled training after printing the stacks of each process."""

import faulthandler
import os
import socket
import sys
import threading
import time
import traceback
import weakref
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Iterator, Optional

from mmengine.dist import get_rank, get_world_size
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

TIMEOUT_S = 1800.0
# A Python thread cannot report while another thread holds the GIL. After this additional time
# faulthandler reports from C.
LOCKED_S = 5.0
# Polling interval for the end of a training by an error.
LOOKS_EVERY_S = 1.0


@HOOKS.register_module()
class WatchdogHook(Hook):
    """Hook that ends the process with exit code 1 after ``timeout`` seconds without progress.

    When one process of a training hangs, all others wait for it, so each process watches itself.
    Progress is the start or end of an epoch or of a training or validation iteration. Without
    progress the stack of every thread is printed to standard error and to
    ``<log folder>/hung_rank<N>.txt``. Then the process ends, so that a launcher (``torchrun
    --max-restarts``, Slurm) notices it. ``mmlinattn train`` uses the hook on several processes.

    The watchdog stops when the runner's ``train`` returns or raises, so a notebook kernel survives.

    Args:
        timeout: seconds, more than the longest legitimate pause of a training, such as an
            evaluation by one process or the compilation of a model.

    Raises:
        ValueError: the timeout is not a positive number.
        RuntimeError: the training was not started by a method of its runner.

    Example:
        >>> custom_hooks = [dict(type='WatchdogHook', timeout=600)]
    """

    # The first hook, so that all others are watched.
    priority = 0

    def __init__(self, timeout: float = TIMEOUT_S) -> None:
        if not (isinstance(timeout, (int, float)) and 0 < timeout < threading.TIMEOUT_MAX):
            raise ValueError(
                f'WatchdogHook.timeout must be a positive number of s, got {timeout!r}'
            )
        self.timeout = timeout
        self.folder = Path()
        self.seen = 0.0
        self.ended: Optional[threading.Event] = None
        self.thread: Optional[threading.Thread] = None

    def before_train(self, runner: Runner) -> None:
        self.stop()
        calls = [f for f in _stack(sys._getframe()) if f.f_locals.get('self') is runner]
        if not calls:
            raise RuntimeError(
                'WatchdogHook watches a training by Runner.train(), which is not called'
            )
        self.folder = Path(runner.log_dir)
        self.ended = threading.Event()
        self._alive()
        # Keep no reference to the runner or its frame: it would hold the memory of a failed run.
        training = (threading.get_ident(), calls[-1].f_code, weakref.ref(runner))
        self.thread = threading.Thread(
            target=self._watch, args=(self.ended, *training), daemon=True
        )
        self.thread.start()

    def stop(self) -> None:
        """Stop the watchdog, if it is running."""
        if self.ended is not None:
            self.ended.set()
            self.ended = None
            faulthandler.cancel_dump_traceback_later()

    def after_train(self, runner: Runner) -> None:
        self.stop()

    def _before_iter(self, *args: Any, **kwargs: Any) -> None:
        self._alive()

    _after_iter = _before_epoch = _after_epoch = _before_iter

    def _alive(self) -> None:
        if self.ended is not None:
            self.seen = time.monotonic()
            faulthandler.dump_traceback_later(self.timeout + LOCKED_S, exit=True, file=2)

    def _watch(
        self, ended: threading.Event, thread: int, train: CodeType, runner: weakref.ref
    ) -> None:
        while (left := self.seen + self.timeout - time.monotonic()) > 0:
            if ended.wait(min(left, LOOKS_EVERY_S)):
                return
            # The training thread may have caught an error and be doing other work.
            if not any(
                frame.f_code is train and frame.f_locals.get('self') is runner()
                for frame in _stack(sys._current_frames().get(thread))
            ):
                if self.ended is ended:
                    self.stop()
                return
        # Write without the logger: a hung thread may hold its lock.
        text = self._report().encode()
        (self.folder / f'hung_rank{get_rank()}.txt').write_bytes(text)
        os.write(2, text)
        os._exit(1)

    def _report(self) -> str:
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        lines = [
            f'Rank {get_rank()} of {get_world_size()} (process {os.getpid()} on '
            f'{socket.gethostname()}) hangs: nothing has happened for {self.timeout:g} s.\n'
        ]
        for ident, frame in sys._current_frames().items():
            if ident != threading.get_ident():
                lines.append(f'{names.get(ident, "a thread")} of rank {get_rank()}:\n')
                lines += traceback.format_stack(frame)
        return ''.join(lines)


def _stack(frame: Optional[FrameType]) -> Iterator[FrameType]:
    """Yield the frames of a stack, innermost call first."""
    while frame is not None:
        yield frame
        frame = frame.f_back
