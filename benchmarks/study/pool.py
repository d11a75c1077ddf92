"""Worker processes that run many trainings each: imports take half as long as a short one."""

import multiprocessing
import os
import threading
import traceback
from collections import deque
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Iterator, Sequence, Tuple

import torch

from .execution import execute
from .grid import Run

Job = Tuple[Run, str]
END_S = 60.0  # a training that is told to end saves a checkpoint first
_context = multiprocessing.get_context('forkserver')
_context.set_forkserver_preload(['benchmarks.study.execution', 'mmdet', 'mmseg', 'mmpretrain'])


class Worker:
    """Process that executes one run after another."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.begin()
        self.job: Job

    def begin(self) -> None:
        self.pipe, other = _context.Pipe()
        self.process = _context.Process(target=_work, args=(other, self.folder))
        self.process.start()
        other.close()

    def start(self, job: Job) -> None:
        self.job = job
        try:
            self.pipe.send(job)
        except OSError:  # it was killed after its last job
            self.begin()
            self.pipe.send(job)

    def result(self) -> dict:
        """Return the record of the job, also if the process was killed."""
        try:
            return self.pipe.recv()
        except (EOFError, OSError):  # also in the middle of its message
            self.process.join()
            run, settings = self.job
            why = f'the process ended with code {self.process.exitcode}'
            return dict(run=run.name, values=run.values, seed=run.seed, rate=run.rate,
                        settings=settings, error=why)  # fmt: skip


def execute_all(jobs: Sequence[Job], folder: Path, workers: int) -> Iterator[Tuple[Job, dict]]:
    """Execute runs in parallel and yield each with its record as it finishes.

    The loop may be left at any time: trainings then save a checkpoint and end.

    Args:
        jobs: runs with the hash of their settings.
        folder: folder of the study.
        workers: processes of one thread each.
    """
    waiting, busy = deque(jobs), {}  # type: Tuple[deque, Dict[Connection, Worker]]
    try:
        for _ in range(min(workers, len(jobs))):
            worker = Worker(folder)
            worker.start(waiting.popleft())
            busy[worker.pipe] = worker
        while busy:
            for pipe in wait(list(busy)):
                worker = busy.pop(pipe)
                job, record = worker.job, worker.result()
                if not waiting:
                    worker.pipe.close()  # ends the process
                else:
                    worker.start(waiting.popleft())
                    busy[worker.pipe] = worker
                yield job, record
    finally:
        for worker in busy.values():
            worker.process.terminate()
        for worker in busy.values():
            worker.process.join(END_S)
            worker.process.kill()


def _work(pipe: Connection, folder: Path) -> None:
    """Execute what comes through the pipe until it is closed or the parent is gone."""
    os.setpgrp()  # Ctrl-C reaches the parent, which ends its workers
    log = os.open(folder / 'workers.log', os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            run, settings = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(execute(run, folder, settings))
        except BrokenPipeError:
            return
        except BaseException:
            traceback.print_exc()
            raise


def _end_with_parent() -> None:
    """End this process when its parent is gone, even in the middle of a training."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
