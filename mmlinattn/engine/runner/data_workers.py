"""System limits of data-loader workers: shared memory and open files."""

import multiprocessing.queues
import os
import resource
from typing import Any, Callable, Optional, Tuple

from torch._utils import ExceptionWrapper
from torch.utils.data import DataLoader

from ..preflight.data import DataError

# Some programs iterate over all possible file descriptors, so the limit stays moderate.
MOST_OPEN_FILES = 65536


def allow_open_files() -> None:
    """Raise the soft limit of open files of this process as far as its hard limit allows.

    Each tensor that a worker sends is an open file in both processes until the batch is used.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def report_unsent_batches(loader: DataLoader) -> None:
    """Raise DataError in the main process when a worker of ``loader`` cannot send a batch.

    A worker sends from a thread. By default Python prints the traceback of the thread and drops
    the batch, and the main process waits for it forever.
    """
    loader.worker_init_fn = _ReportingWorker(loader.worker_init_fn)


class _ReportingWorker:
    """Initialiser of a worker. It changes the queues of the worker process only."""

    def __init__(self, init: Optional[Callable[[int], None]]) -> None:
        self.init = init

    def __call__(self, worker_id: int) -> None:
        queue: Any = multiprocessing.queues.Queue  # its types lack the method
        queue._on_queue_feeder_error = _send_error
        if self.init is not None:
            self.init(worker_id)


def _send_error(
    queue: multiprocessing.queues.Queue, error: Exception, item: Tuple[int, Any]
) -> None:
    """Send an error in place of a batch, as the DataLoader does for errors of the data set."""
    index, _ = item
    shared = os.statvfs('/dev/shm') if os.path.isdir('/dev/shm') else None
    free = f'{shared.f_bavail * shared.f_frsize / 2**20:.1f} MiB' if shared else 'nothing'
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    reported = DataError(
        f'a data-loader worker cannot send a batch: {error}. Give it more shared memory '
        f'(/dev/shm has {free} free; docker run --shm-size=2g) or more open files (ulimit -n is '
        f'{files}), or set num_workers=0 and persistent_workers=False'
    )
    where = 'in a data-loader worker'
    queue.put((index, ExceptionWrapper((DataError, reported, error.__traceback__), where)))
