"""Processes of a training that are killed or hang: torchrun's agent starts all of them again."""

import os
import subprocess
import time
from pathlib import Path

import pytest
import torch
from mmengine.config import Config

from mmlinattn.checkpoints import read_checkpoint
from mmlinattn.engine import WatchdogHook
from mmlinattn.engine.distributed.launch import check_restarts, group_timeout, set_launcher
from mmlinattn.engine.hooks import watchdog_hook as hang
from mmlinattn.engine.training_setup import set_watchdog_timeout

from ..programs import Program, free_port
from ..sizes import LONG, size
from .conftest import CONFIGS

pytestmark = pytest.mark.slow

# 7 iterations an epoch with two processes, a checkpoint every third.
SMALL = [
    'model.backbone.arch.embed_dims=(16,16,16,16)',
    'model.backbone.arch.depths=(1,1,1,1)',
    'model.backbone.arch.num_heads=(1,1,1,1)',
    'model.backbone.drop_path_rate=0.3',
    'model.neck.in_channels=16',
    'default_hooks.checkpoint.by_epoch=False',
    'default_hooks.checkpoint.interval=3',
]


@pytest.fixture
def config(root, tmp_path) -> Path:
    path = tmp_path / 'faulty.py'
    path.write_text(f"""
_base_ = {str(root / CONFIGS['cls'])!r}
custom_imports = dict(imports=['mmlinattn', 'tests.test_tools.fault_hook'])
custom_hooks = [dict(type='ExactResumeHook'), dict(type='FaultHook')]
""")
    return path


def start(root, config, work, options, processes: int, *arguments, restarts=0, **fault) -> Program:
    command = [root / 'tools/train.py', config, '--launcher', 'pytorch', '--work-dir', work]
    return Program(
        root / 'tests/elastic_agent.py',
        [processes, restarts, f'127.0.0.1:{free_port()}', *command, *arguments, '--cfg-options',
         *options],
        work.with_name(f'{work.name}.out'), [root], **fault,
    )  # fmt: skip


def train(*arguments, **options) -> str:
    program = start(*arguments, **options)
    assert program.end() == 0, program.text()[-3000:]
    return program.text()


def newest(work) -> dict:
    return read_checkpoint((work / 'last_checkpoint').read_text())


def equal(work, other) -> bool:
    states = [newest(path)['state_dict'] for path in (work, other)]
    return all(torch.equal(value, states[1][name]) for name, value in states[0].items())


@pytest.mark.long
def test_killed_and_resumed_by_one_process(root, run, options, config, tmp_path, capsys):
    processes = size(2, 4)
    cfg = [*options('cls', 2, batch=8 // processes), *SMALL]
    whole, killed, other = (tmp_path / name for name in ('whole', 'killed', 'other'))
    train(root, config, whole, cfg, processes)
    printed = train(
        root, config, killed, cfg, processes, '--resume', restarts=1, FAULT='kill', FAULT_AT='11'
    )
    assert printed.count(': a new training') == 1
    assert printed.count('resumed epoch: 1, iter: 9') == 1
    assert 'Resumed before batch 3 of 7' in printed and 'Resumed with' not in printed
    assert equal(whole, killed) and newest(killed)['meta']['iter'] == 14

    # All the images of a step in one process: the same place in the epoch.
    resume = [config, '--work-dir', other, '--resume', killed / 'iter_9.pth', '--cfg-options', *cfg]
    run('train', *resume, 'train_dataloader.batch_size=8')
    printed = capsys.readouterr().out
    assert (
        f'Resumed with 1 processes of 8 images each; the checkpoint is of {processes} of '
        in printed
    )
    assert 'A step has 8 images as before' in printed and 'before batch 3 of 7' in printed
    assert newest(other)['meta']['iter'] == 14

    # Half of them: twice the iterations, and a schedule that ends where it would have ended.
    run('train', *resume, 'train_dataloader.batch_size=4')
    printed = capsys.readouterr().out
    assert 'A step has 4 images in place of 8, at the learning rate of the checkpoint' in printed
    assert 'An epoch had 7 batches when the checkpoint was made and has 13 now' in printed
    content, expected = newest(other), newest(whole)
    assert content['meta']['iter'] == content['param_schedulers'][0]['_global_step'] == 26
    last_rate = [c['optimizer']['param_groups'][0]['lr'] for c in (content, expected)]
    assert last_rate[0] == pytest.approx(last_rate[1], rel=1e-3)


@pytest.mark.long
@pytest.mark.parametrize('fault', size(['sleep'], ['sleep', 'lock']))
def test_a_process_that_hangs(root, options, config, tmp_path, fault):
    """The job ends, with an error, and the log has the stack of each process."""
    work, timeout = tmp_path / 'work', 10
    program = start(
        root, config, work, [*options('cls', 2), *SMALL], 2, '--watchdog-timeout', timeout,
        FAULT=fault, FAULT_AT='5',
    )  # fmt: skip
    program.wait_for('hangs on purpose')
    began = time.monotonic()
    assert program.end() == 1
    assert time.monotonic() - began < timeout + 60
    printed = program.text()
    waiting = next(work.glob('*/hung_rank0.txt')).read_text()
    assert (
        waiting.startswith('Rank 0 of 2 (process ') and f'has happened for {timeout} s' in waiting
    )
    assert waiting in printed and 'in backward' in waiting
    # The line of the hook, from Python's own thread or, where that is locked out, from C.
    assert f'in {fault}\n' in printed
    assert ('Rank 1 of 2' in printed) == (fault == 'sleep')
    assert (fault == 'lock') == ('Timeout (0:00:15)!' in printed)


@pytest.mark.long
@pytest.mark.skipif(not LONG, reason='imports the frameworks eight times; make test-long does')
def test_two_machines(root, options, config, tmp_path):
    """torchrun twice, as on two machines, two processes each, of which one is killed."""
    cfg = [*options('cls', 2, batch=2), *SMALL]
    whole, killed = tmp_path / 'whole', tmp_path / 'killed'
    train(root, config, whole, cfg, 4)
    command = ['bash', root / 'tools/dist_train.sh', config, '2', '--resume', '--work-dir', killed]
    environment = dict(
        os.environ, NNODES='2', MASTER_ADDR='127.0.0.1', PORT=free_port(), MAX_RESTARTS='1',
        FAULT='kill', FAULT_AT='11', PYTHONPATH=str(root),
    )  # fmt: skip
    agents = [
        subprocess.Popen(
            [*map(str, command), '--cfg-options', *cfg], env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        for _ in range(2)
    ]  # fmt: skip
    printed = [agent.communicate(timeout=500)[0] for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], printed[0][-3000:] + printed[1][-3000:]
    assert sum(text.count('Resumed before batch 3 of 7') for text in printed) == 1
    assert equal(whole, killed)


@pytest.mark.parametrize(
    'environment, resume, message',
    [
        (dict(TORCHELASTIC_MAX_RESTARTS='3'), None, 'restarts 3 goes with --resume and no value'),
        (dict(TORCHELASTIC_MAX_RESTARTS='3'), 'a.pth', 'goes with --resume and no value'),
        (
            dict(TORCHELASTIC_MAX_RESTARTS='1', TORCHELASTIC_USE_AGENT_STORE='True'),
            'auto',
            'needs TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1',
        ),
    ],
)
def test_restarts_that_could_not_go_on(monkeypatch, environment, resume, message):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message):
        check_restarts(resume)
    monkeypatch.setenv('TORCHELASTIC_USE_AGENT_STORE', 'False')
    check_restarts('auto')
    monkeypatch.setenv('TORCHELASTIC_MAX_RESTARTS', '0')
    check_restarts(resume)


def test_a_process_of_torchrun_that_would_train_alone(monkeypatch):
    monkeypatch.setenv('TORCHELASTIC_RUN_ID', 'x')
    monkeypatch.setenv('WORLD_SIZE', '2')
    with pytest.raises(ValueError, match='none in one of 2 processes of torchrun'):
        set_launcher(Config(), 'none')


def test_how_long_processes_wait():
    """The hook says first where each stands, unless the config says otherwise."""
    cfg = Config(dict(custom_hooks=[dict(type='ExactResumeHook')]))
    assert group_timeout(cfg) is None
    set_watchdog_timeout(cfg, None)
    assert cfg.custom_hooks[1:] == [dict(type='WatchdogHook')]
    assert group_timeout(cfg).total_seconds() == WatchdogHook().timeout + 60
    cfg = Config(dict(custom_hooks=[dict(type='WatchdogHook', timeout=5)]))
    set_watchdog_timeout(cfg, None)
    assert cfg.custom_hooks == [dict(type='WatchdogHook', timeout=5)]
    assert group_timeout(cfg).total_seconds() == 65
    cfg = Config(dict(env_cfg=dict(dist_cfg=dict(timeout=9))))
    set_watchdog_timeout(cfg, 7.5)
    assert cfg.custom_hooks[0].timeout == 7.5 and group_timeout(cfg).total_seconds() == 9
    for timeout in (0, -1, 'long', float('nan')):
        with pytest.raises(ValueError, match='WatchdogHook.timeout must be a positive number'):
            WatchdogHook(timeout)


class Trained:
    """A runner, as far as the hook knows it."""

    def __init__(self, log_dir, hook, run) -> None:
        self.log_dir, self.hook, self.run = str(log_dir), hook, run

    def train(self) -> None:
        self.hook.before_train(self)
        self.run()


@pytest.fixture
def exits(monkeypatch) -> list:
    """Codes that the watch, in Python, would have ended this process with."""
    codes: list = []
    monkeypatch.setattr(hang.os, '_exit', codes.append)
    monkeypatch.setattr(hang, 'LOCKED_S', 600.0)
    return codes


def test_the_watch_ends_with_the_training(tmp_path, exits):
    """And not before what it watches for: iterations of less than its timeout."""
    hook = WatchdogHook(timeout=1.5)

    def run() -> None:
        for _ in range(20):
            time.sleep(0.1)
            hook.before_train_iter(None, 0)
        assert hook.thread.is_alive() and not exits
        hook.after_train(None)

    Trained(tmp_path, hook, run).train()
    hook.thread.join(30)
    assert not hook.thread.is_alive() and not exits and not [*tmp_path.iterdir()]


def test_the_watch_ends_with_an_error_that_is_caught(tmp_path, exits):
    """As in a notebook, which keeps the runner and the traceback."""
    hook = WatchdogHook(timeout=60)

    def run() -> None:
        raise MemoryError('of the GPU')

    runner = Trained(tmp_path, hook, run)
    with pytest.raises(MemoryError) as kept:
        runner.train()
    hook.thread.join(30)
    assert not hook.thread.is_alive() and not exits and not [*tmp_path.iterdir()]
    assert hook.ended is None and kept.traceback
    with pytest.raises(RuntimeError, match='by Runner.train'):
        hook.before_train(runner)


def test_the_watch_ends_a_process_that_hangs(tmp_path, exits):
    hook = WatchdogHook(timeout=0.5)
    Trained(tmp_path, hook, lambda: hook.thread.join(30)).train()
    hook.stop()
    assert exits == [1]
    assert 'in test_the_watch_ends_a_process' in (tmp_path / 'hung_rank0.txt').read_text()
