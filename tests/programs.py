"""Scripts in processes of their own, without the seconds that it takes to import the frameworks.

They are forked from a process that has imported these already and computed nothing; all else is as
if Python had been started with the script: arguments, environment, output, exit code, a process
group of its own.
"""

import gc
import multiprocessing
import os
import runpy
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Dict, List, Sequence

FRAMEWORKS = ['mmlinattn', 'mmdet.apis', 'mmseg.apis', 'mmpretrain.apis', 'pycocotools.coco']
TIMEOUT_S = 240

_forks = multiprocessing.get_context('forkserver')
_forks.set_forkserver_preload(FRAMEWORKS)


def _become(
    script: str, arguments: Sequence[str], environment: Dict[str, str], output: str
) -> None:
    os.setsid()
    os.environ.clear()
    sys.path[:0] = [os.path.dirname(script), *environment['PYTHONPATH'].split(os.pathsep)]
    run_script(script, arguments, environment, output)


def run_script(
    script: str, arguments: Sequence[str], environment: Dict[str, str], output: str
) -> None:
    """Run a script in a process of the fork server, with these variables besides its own.

    Args:
        output: file that its standard output and errors are added to.
    """
    gc.freeze()  # what was imported is never garbage
    os.environ.update(environment)
    sys.argv = [script, *arguments]
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)
    runpy.run_path(script, run_name='__main__')


def free_port() -> str:
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        return str(s.getsockname()[1])


def run_two(
    script: Path, arguments: Sequence, folder: Path, root: Path, **environment: str
) -> 'Program':
    """Run a script in a group of two processes, and return the first of them."""
    group = dict(WORLD_SIZE='2', MASTER_ADDR='127.0.0.1', MASTER_PORT=free_port(), **environment)
    programs = [
        Program(script, arguments, folder / f'{i}.out', [root], RANK=str(i), **group)
        for i in range(2)
    ]
    for program in programs:
        assert program.end() == 0, program.text()[-4000:]
    return programs[0]


class Program:
    """``python script *arguments``, started at once; it may import from ``paths``.

    Args:
        script: path of the script.
        arguments: what it gets as ``sys.argv[1:]``.
        output: file that its standard output and errors are added to.
        paths: what ``PYTHONPATH`` says.
        **environment: what differs from this process's environment.
    """

    started: List['Program'] = []  # by the test that runs

    def __init__(
        self, script: Path, arguments: Sequence, output: Path, paths: Sequence[Path] = (),
        **environment: str,
    ) -> None:  # fmt: skip
        self.output = output
        path = os.pathsep.join(map(str, paths))
        environment = {**os.environ, 'OMP_NUM_THREADS': '1', 'PYTHONPATH': path, **environment}
        self.process = _forks.Process(
            target=_become, args=(str(script), [*map(str, arguments)], environment, str(output))
        )
        self.process.start()
        self.started.append(self)

    def text(self) -> str:
        """What it has printed so far."""
        return self.output.read_text() if self.output.exists() else ''

    def wait_for(self, text: str, times: int = 1) -> None:
        """Until it has printed this; one that ends or hangs before fails the test."""
        end = time.monotonic() + TIMEOUT_S
        while self.text().count(text) < times:
            hung = time.monotonic() > end
            if hung:
                self.kill()
            assert self.process.is_alive() and not hung, f'no {text!r}: {self.text()[-3000:]}'
            time.sleep(0.01)

    def end(self) -> int:
        """Its exit code, or minus the signal that ended it; one that hangs fails the test."""
        self.process.join(TIMEOUT_S)
        if self.process.exitcode is None:
            self.kill()
            raise AssertionError(f'it hung: {self.text()[-3000:]}')
        return self.process.exitcode

    def kill(self) -> None:
        """SIGKILL to it and all that it started."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.join()
