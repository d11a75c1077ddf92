"""A training that stands still ends with an error, and says first where each process stands."""

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
# A thread of Python cannot report while another one holds the interpreter; C can, this much later.
LOCKED_S = 5.0
# How soon it is seen that a training has ended with an error.
LOOKS_EVERY_S = 1.0


@HOOKS.register_module()
class HangHook(Hook):
    """Ends the process with exit code 1 when nothing has happened for ``timeout`` seconds.

    In a training on several processes one that hangs lets all others wait. So each watches itself:
    where neither an iteration, of training or validation, nor an epoch begins or ends for that
    long, the stack of every thread is printed to standard error and to
    ``<log folder>/hung_rank<N>.txt``, and the process ends, so that a launcher (``torchrun
    --max-restarts``, Slurm) sees it. ``tools/train.py`` uses the hook on several processes.

    The watch ends with the call of the runner's ``train``, whether it returns or raises: in a
    notebook the kernel lives on.

    Args:
        timeout: in seconds, longer than the longest that a training rightly stands still: an
            evaluation by one process, or the compilation of a model.

    Raises:
        ValueError: a timeout that is no positive number.
        RuntimeError: a loop that is run by other means than a method of its runner.

    Example:
        >>> custom_hooks = [dict(type='HangHook', timeout=600)]
    """

    # First of all hooks: what the others do is watched.
    priority = 0

    def __init__(self, timeout: float = TIMEOUT_S) -> None:
        if not (isinstance(timeout, (int, float)) and 0 < timeout < threading.TIMEOUT_MAX):
            raise ValueError(f'HangHook.timeout must be a positive number of s, got {timeout!r}')
        self.timeout = timeout
        self.folder = Path()
        self.seen = 0.0
        self.ended: Optional[threading.Event] = None
        self.thread: Optional[threading.Thread] = None

    def before_train(self, runner: Runner) -> None:
        self.stop()
        calls = [f for f in _stack(sys._getframe()) if f.f_locals.get('self') is runner]
        if not calls:
            raise RuntimeError('HangHook watches a training by Runner.train(), which is not called')
        self.folder = Path(runner.log_dir)
        self.ended = threading.Event()
        self._alive()
        # Neither the runner nor its frame: they would keep the memory of a training that failed.
        training = (threading.get_ident(), calls[-1].f_code, weakref.ref(runner))
        self.thread = threading.Thread(
            target=self._watch, args=(self.ended, *training), daemon=True
        )
        self.thread.start()

    def stop(self) -> None:
        """Watch no more; does nothing where it does not watch."""
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
            # The thread that trains may have caught an error, and do something else.
            if not any(
                frame.f_code is train and frame.f_locals.get('self') is runner()
                for frame in _stack(sys._current_frames().get(thread))
            ):
                if self.ended is ended:
                    self.stop()
                return
        # Not by the logger: what hangs may hold its lock.
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
    """From the innermost call."""
    while frame is not None:
        yield frame
        frame = frame.f_back
