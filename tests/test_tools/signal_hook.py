"""Hooks for the tests of interrupted trainings."""

import os
import signal
import subprocess

from mmengine.dist import get_rank
from mmengine.hooks import Hook
from mmengine.registry import HOOKS


@HOOKS.register_module()
class SignalHook(Hook):
    """Sends SIGTERM before the iteration of the number in the environment, to all of a single
    process's group, or to the first of several processes."""

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        if runner.iter + 1 != int(os.environ.get('SIGNAL_AT', 0)) or get_rank():
            return
        if runner.distributed:
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            # By another process, as a scheduler: data-loader workers obey their parent.
            subprocess.run(['kill', '-TERM', '--', f'-{os.getpgrp()}'], check=False)
