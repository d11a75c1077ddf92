"""Worker processes with clean state, time limits and errors for dead workers.

The fork of a process with threads can deadlock on a lock that none of its threads releases. It
also inherits signal handlers, with which ``terminate`` may not end it. Workers are therefore
started by Python's fork server, a single-threaded process that has imported this package.
"""

import multiprocessing
import os
import signal
import time
from contextlib import suppress
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Union

TASK_LIMIT_S = 600.0  # limit of one task, enough for six attempts at a slow store
START_LIMIT_S = 300.0  # limit for importing this package from a slow disk
EXIT_LIMIT_S = 10.0  # limit for a process to exit


class WorkerDied(ChildProcessError):
    """Error for a worker process that died or exceeded the time limit before its task was done."""


def start_server() -> None:
    """Start Python's fork server, unless it runs, and let it import this package.

    The imports take seconds. Call this function early, so that other work can run meanwhile.
    Workers start with SIGINT blocked, until they ignore it: Ctrl-C would else end one with a
    traceback.
    """
    multiprocessing.get_context('forkserver').set_forkserver_preload([__package__])
    given = os.environ.get('OPENBLAS_NUM_THREADS')
    os.environ['OPENBLAS_NUM_THREADS'] = '1'  # else numpy starts threads at import
    resource_tracker.ensure_running()  # it unblocks SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        del os.environ['OPENBLAS_NUM_THREADS']
        if given is not None:
            os.environ['OPENBLAS_NUM_THREADS'] = given


def map_in_workers(
    function: Callable[[Any], Any],
    tasks: Sequence[Any],
    workers: int,
    setup: Optional[Callable[[], Any]] = None,
    limit_s: float = TASK_LIMIT_S,
) -> Iterator[Union[Any, WorkerDied]]:
    """Yield ``function(task)`` for each task, in order, computed in worker processes.

    Workers have the environment variables of this process at the time of the call. A script that
    calls this needs ``if __name__ == '__main__':``, as for any use of ``multiprocessing``.

    Args:
        function: function importable by name; its argument and result must be picklable.
        tasks: arguments of the calls.
        workers: number of processes.
        setup: called once at the start of each worker.
        limit_s: maximum seconds of one task; a worker that exceeds it is killed.

    Yields:
        the result, or a :class:`WorkerDied` for a task whose worker did not finish it. A new
        worker replaces the one that died.

    Raises:
        RuntimeError: a worker cannot start, or ``setup`` fails.
        Exception: ``function`` raises it for a task.
    """
    start_server()
    pool: List[_Worker] = []
    results: Dict[int, Any] = {}
    waiting = iter(range(len(tasks)))
    try:
        for _ in range(min(workers, len(tasks))):
            pool.append(_Worker(function, setup, limit_s))
        for worker in pool:
            worker.give(next(waiting), tasks)
        for index in range(len(tasks)):
            while index not in results:
                for worker in _ready(pool):
                    assert worker.index is not None
                    results[worker.index] = worker.result()
                    following = next(waiting, None)
                    if not worker.alive:
                        pool.remove(worker)
                        if following is None:
                            continue
                        worker = _Worker(function, setup, limit_s)
                        pool.append(worker)
                    worker.give(following, tasks)
            result = results.pop(index)
            if isinstance(result, Exception) and not isinstance(result, WorkerDied):
                raise result
            yield result
    finally:
        for worker in pool:
            worker.end()


class _Worker:
    """Process that computes one task at a time, and the pipe to it.

    Each worker has its own pipe: if the process dies, its end is closed, and no shared lock
    remains taken.
    """

    def __init__(self, function: Callable, setup: Optional[Callable], limit_s: float) -> None:
        context = multiprocessing.get_context('forkserver')
        self.pipe, other_end = context.Pipe()
        self.process = context.Process(
            target=_serve, args=(other_end, dict(os.environ), setup, function), daemon=True
        )
        self.process.start()
        other_end.close()
        self.limit_s = limit_s
        self.index: Optional[int] = None
        self.alive, self.started = True, False

    def give(self, index: Optional[int], tasks: Sequence[Any]) -> None:
        """Send the task of this index; send nothing if the index is None."""
        if not self.started:
            self._wait_for_start()
        self.index = index
        self.until = time.monotonic() + self.limit_s
        if index is not None:
            with suppress(BrokenPipeError):  # the process is dead, which result() reports
                self.pipe.send(tasks[index])

    def _wait_for_start(self) -> None:
        error: Optional[Exception] = TimeoutError(f'no sign of it for {START_LIMIT_S:g} s')
        try:
            if self.pipe.poll(START_LIMIT_S):
                error = self.pipe.recv()
        except (EOFError, ConnectionResetError) as closed:
            self.process.join(EXIT_LIMIT_S)
            error = closed
        if error is not None:
            raise RuntimeError(
                f'a worker process cannot start ({str(error) or _exit(self.process.exitcode)}): '
                "scripts need if __name__ == '__main__': around what starts one"
            ) from error
        self.started = True

    def result(self) -> Any:
        """Return the result or exception that the process sent, or WorkerDied if it sent none."""
        try:
            if self.pipe.poll():
                return self.pipe.recv()
            why = f'it was not done after {self.limit_s:g} s'
        except (EOFError, ConnectionResetError):
            self.process.join(EXIT_LIMIT_S)
            why = f'its process died ({_exit(self.process.exitcode)})'
        self.alive = False
        self.end()
        return WorkerDied(why)

    def end(self) -> None:
        """End the process; kill it if it has a task, else let it exit."""
        self.pipe.close()
        if self.index is not None:
            self.process.kill()
        self.process.join(EXIT_LIMIT_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join(EXIT_LIMIT_S)


def _ready(pool: List[_Worker]) -> List[_Worker]:
    """Wait until workers have sent a result, died or exceeded the time limit, and return them."""
    busy = {worker.pipe: worker for worker in pool if worker.index is not None}
    now, until = time.monotonic(), min(worker.until for worker in busy.values())
    heard = wait([*busy], max(0.0, until - now))
    if heard:
        return [worker for pipe, worker in busy.items() if pipe in heard]
    return [worker for worker in busy.values() if worker.until <= time.monotonic()]


def _exit(code: Optional[int]) -> str:
    if code is not None and code < 0:
        return signal.Signals(-code).name
    return f'exit code {code}'


def _serve(
    pipe: Connection, environment: Dict[str, str], setup: Optional[Callable], function: Callable
) -> None:
    """Run tasks until the other end of the pipe is closed, as the main function of a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C in a terminal
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # lets the parent terminate the worker
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    os.environ.clear()
    os.environ.update(environment)
    # The parent closes its end to stop the worker, which may still start. If an answer is unread at
    # that time, the worker gets ConnectionResetError or BrokenPipeError instead of EOFError.
    with suppress(EOFError, ConnectionResetError, BrokenPipeError):
        try:
            if setup is not None:
                setup()
        except Exception as error:
            pipe.send(error)
            return
        pipe.send(None)
        while True:
            task = pipe.recv()
            try:
                answer = function(task)
            except Exception as error:
                answer = error
            pipe.send(answer)
