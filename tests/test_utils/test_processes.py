"""Workers that crash or hang are named, and nobody waits for them without a limit."""

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from functools import partial

import pytest

from mmlinattn.utils import processes
from mmlinattn.utils.processes import WorkerDied, map_in_workers


def square(number):
    return number * number


def value_of(name):
    return os.environ.get(name)


def parent_and_its_threads(_):
    return os.getppid(), len(os.listdir(f'/proc/{os.getppid()}/task'))


def act(task):
    if task == 'exit':
        os._exit(11)
    if task == 'kill':
        os.kill(os.getpid(), signal.SIGKILL)
    if task == 'raise':
        raise ValueError('said by the task')
    if task == 'sleep':
        time.sleep(600)
    return task


def environment_and_handler(_):
    return os.environ.get('OF_THE_TEST'), signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_results_come_in_the_order_of_the_tasks():
    assert [*map_in_workers(square, range(20), 3)] == [i * i for i in range(20)]
    assert [*map_in_workers(square, [], 3)] == []


@pytest.mark.parametrize('task, why', [('exit', 'exit code 11'), ('kill', 'SIGKILL')])
def test_a_worker_that_dies_loses_its_task_alone(task, why):
    tasks = ['a', task, 'b', task, 'c', 'd']
    found = [*map_in_workers(act, tasks, 2)]
    assert [t if isinstance(f, WorkerDied) else f for t, f in zip(tasks, found)] == tasks
    assert all(why in str(found[i]) for i in (1, 3))


def test_a_task_that_does_not_end_is_ended():
    found = [*map_in_workers(act, ['a', 'sleep', 'b'], 2, limit_s=3)]
    assert found[::2] == ['a', 'b'] and str(found[1]) == 'it was not done after 3 s'


def test_an_error_of_a_task_is_raised():
    with pytest.raises(ValueError, match='said by the task'):
        [*map_in_workers(act, ['a', 'raise', 'b'], 2)]


def test_a_process_with_a_handler_of_sigterm(monkeypatch):
    """A worker that inherited it would not end when told to."""
    monkeypatch.setenv('OF_THE_TEST', 'yes')
    old = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        found = [*map_in_workers(environment_and_handler, [0, 1], 2)]
    finally:
        signal.signal(signal.SIGTERM, old)
    assert found == [('yes', True)] * 2


def fail():
    raise ValueError('said by the setup')


def test_a_worker_that_cannot_start():
    with pytest.raises(RuntimeError, match=r'cannot start \(said by the setup\)'):
        next(map_in_workers(value_of, ['A'] * 9, 2, fail))
    with pytest.raises(RuntimeError, match=r'cannot start \(exit code 11\)'):
        next(map_in_workers(value_of, ['A'] * 9, 2, partial(os._exit, 11)))


def set_variable():
    os.environ['SET_UP'] = 'here'


def test_workers_end_when_nobody_asks_for_more():
    before = {*multiprocessing.active_children()}
    results = map_in_workers(value_of, ['SET_UP'] * 9, 2, set_variable)
    assert next(results) == 'here'
    assert len({*multiprocessing.active_children()} - before) == 2
    results.close()
    assert not {*multiprocessing.active_children()} - before


def use(pipe_action):
    """Start a worker, give it a task, let the test act on the pipe, and return its exit code."""
    worker = processes._Worker(square, None, limit_s=60)
    worker.give(0, [3])
    pipe_action(worker)
    worker.process.join(60)
    return worker.process.exitcode


def test_a_worker_whose_answer_nobody_reads_exits_without_a_traceback():
    """A closed pipe with unread data resets the connection instead of ending it."""

    def close_unread(worker):
        assert worker.pipe.poll(60)
        worker.pipe.close()

    def close_while_busy(worker):
        os.kill(worker.process.pid, signal.SIGSTOP)
        worker.pipe.send(4)
        worker.pipe.close()
        os.kill(worker.process.pid, signal.SIGCONT)

    assert [use(close_unread), use(close_while_busy)] == [0, 0]


def test_a_worker_that_is_stopped_while_it_starts_exits_without_a_traceback():
    worker = processes._Worker(square, partial(time.sleep, 1), limit_s=60)
    worker.pipe.close()
    worker.process.join(60)
    assert worker.process.exitcode == 0


FORK = re.compile(
    r"""os\.fork|get_context\(['"]fork['"]|start_method=['"]fork['"]"""
    r"""|multiprocessing\.(Process|Pool)\(|ProcessPoolExecutor\((?![^)]*context)"""
)


def test_no_process_with_threads_is_forked(root):
    """Besides by data loaders of MMEngine, whose start method is an option of configs."""
    assert FORK.search('ProcessPoolExecutor(2)') and FORK.search("get_context('fork')")
    assert not FORK.search('ProcessPoolExecutor(2, mp_context=context)')
    folders = [root / name for name in ('mmlinattn', 'tools', 'benchmarks', 'tests')]
    found = {
        str(path.relative_to(root))
        for folder in folders
        for path in folder.rglob('*.py')
        if FORK.search(path.read_text(encoding='utf-8'))
    }
    # Tests of a fork itself: as data loaders fork, of a signal, of a lock.
    assert found == {
        'tests/test_engine/test_command_line.py',
        'tests/test_engine/test_folders.py',
        'tests/test_utils/test_processes.py',
    }


def test_workers_come_from_a_process_of_one_thread():
    parents = [*map_in_workers(parent_and_its_threads, [0, 1, 2], 2)]
    assert all(parent != os.getpid() and threads == 1 for parent, threads in parents)


def test_ctrl_c_while_a_worker_starts(root):
    """It waits: the worker, which does not ignore it yet, would end with a traceback."""
    code = (
        'import signal, multiprocessing\n'
        'from mmlinattn.utils.processes import start_server\n'
        'start_server()\n'
        'assert not signal.pthread_sigmask(signal.SIG_BLOCK, [])\n'
        "start = multiprocessing.get_context('forkserver').Process\n"
        'worker = start(target=signal.raise_signal, args=(signal.SIGINT,))\n'
        'worker.start()\nworker.join()\nprint(worker.exitcode)\n'
    )
    done = subprocess.run(
        [sys.executable, '-c', code], capture_output=True, text=True, timeout=120, cwd=root
    )
    assert done.stdout == '0\n' and 'Traceback' not in done.stderr, done.stderr


def test_a_test_that_hangs_has_a_name(root, tmp_path):
    """And ends, after the time limit of pyproject.toml."""
    (tmp_path / 'test_it.py').write_text(
        'import threading\ndef test_hangs():\n    threading.Event().wait()\n'
    )
    options = ['-c', root / 'pyproject.toml', '--rootdir', tmp_path, '-p', 'no:xdist']
    done = subprocess.run(
        [sys.executable, '-m', 'pytest', *options, '-o', 'faulthandler_timeout=1', tmp_path],
        capture_output=True, text=True, timeout=120, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 1 and 'in test_hangs\n' in done.stderr
