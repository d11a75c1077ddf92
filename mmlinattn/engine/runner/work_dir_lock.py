"""Folders that one training has for itself."""

import logging
import time
from pathlib import Path

from mmengine.logging import print_log

from ...utils import FolderInUse, lock_folder
from ..distributed.launch import of_first_process

# torchrun gives its processes 30 s to end before it kills them.
RESTART_S = 35.0
LOOKS_EVERY_S = 0.5


def claim_folder(folder: str, restarted: bool = False) -> bool:
    """Lock a folder for this training. All its processes call this together; the first one locks.

    Args:
        folder: work directory, or folder of checkpoints.
        restarted: wait for :data:`RESTART_S` where a former training may still be ending.

    Returns:
        False where the file system has no locks, which is a warning.

    Raises:
        mmlinattn.utils.FolderInUse: another training has the folder.
        mmlinattn.utils.NotWritten: the folder cannot be written to.
    """
    locked = of_first_process(lambda: _lock(Path(folder), RESTART_S if restarted else 0.0))
    if not locked:
        print_log(
            f'{folder}: its file system has no locks; start no other training in this folder',
            'current',
            level=logging.WARNING,
        )
    return locked


def _lock(folder: Path, wait_s: float) -> bool:
    end, waiting = time.monotonic() + wait_s, False
    while True:
        try:
            return lock_folder(folder)
        except FolderInUse as error:
            if time.monotonic() >= end:
                raise
            if not waiting:
                print_log(f'waiting up to {wait_s:g} s: {error}', 'current')
            waiting = True
            time.sleep(LOOKS_EVERY_S)
