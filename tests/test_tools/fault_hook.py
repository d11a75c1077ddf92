"""Hooks for the tests of trainings on several processes of which one fails."""

import ctypes
import os
import signal
import time

from mmengine.dist import get_rank
from mmengine.hooks import Hook
from mmengine.registry import HOOKS


@HOOKS.register_module()
class FaultHook(Hook):
    """What ``FAULT`` in the environment says, 'kill', 'sleep' or 'lock', before the iteration of
    the number ``FAULT_AT``, in the last process, once: a restarted training has none."""

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        last = get_rank() + 1 == runner.world_size
        first_start = os.environ.get('TORCHELASTIC_RESTART_COUNT') == '0'
        if last and first_start and runner.iter + 1 == int(os.environ.get('FAULT_AT', 0)):
            FAULTS[os.environ['FAULT']]()


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def sleep() -> None:
    print('hangs on purpose', flush=True)
    time.sleep(1e6)


def lock() -> None:
    """Holds the interpreter's lock: no other thread of Python goes on, no signal is handled."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # which would end the C sleep
    print('hangs on purpose', flush=True)
    ctypes.PyDLL(None).sleep(1_000_000)


FAULTS = dict(kill=kill, sleep=sleep, lock=lock)
