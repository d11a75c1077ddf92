"""Parallel trainings, several per process: importing the frameworks takes half as long as one."""

import multiprocessing
import os
import signal
import threading
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Dict, Iterator, Sequence

import torch

from .plan import Job, Sizes
from .training import train


def run(
    jobs: Sequence[Job], folder: Path, roots: Dict[str, Path], sizes: Sizes, workers: int
) -> Iterator[dict]:
    """Train the jobs and yield their records as they finish.

    Args:
        workers: processes of one thread each; 1 is this process.
    """
    torch.set_num_threads(1)
    if workers == 1:
        for job in jobs:
            yield train(job, folder, roots[job.data], sizes)
        return
    folder.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context('spawn')
    with ProcessPoolExecutor(workers, context, _start, (folder, os.getpid())) as pool:
        try:
            waiting = [pool.submit(train, job, folder, roots[job.data], sizes) for job in jobs]
            for done in as_completed(waiting):
                yield done.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)  # running jobs finish and are saved
            raise


def _start(folder: Path, parent: int) -> None:
    """Set up a worker: log file, one thread, and exit with the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles it
    log = os.open(folder / 'workers.log', os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    torch.set_num_threads(1)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """End this worker when its parent is gone; otherwise it would wait for jobs forever."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)
