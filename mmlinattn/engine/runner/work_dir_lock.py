"""Locks that give one training exclusive use of its folders."""

import time
from pathlib import Path

from mmengine.logging import print_log

from ...utils import FolderInUse, lock_folder
from ...utils.messages import log_warning
from ..distributed.launch import broadcast_from_first

# torchrun waits 30 s for its processes to end before it kills them.
RESTART_S = 35.0
LOOKS_EVERY_S = 0.5


def lock_work_dir(folder: str, restarted: bool = False) -> bool:
    """Lock a folder for this training. All its processes call this together; the first one locks.

    Args:
        folder: work directory, or folder of checkpoints.
        restarted: wait up to :data:`RESTART_S` for a former training that may still be ending.

    Returns:
        False if the file system has no locks, which also logs a warning.

    Raises:
        mmlinattn.utils.FolderInUse: another training uses the folder.
        mmlinattn.utils.WriteError: the folder is not writable.
    """
    locked = broadcast_from_first(lambda: _lock(Path(folder), RESTART_S if restarted else 0.0))
    if not locked:
        log_warning(
            f'{folder}: its file system has no locks; start no other training in this folder'
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
