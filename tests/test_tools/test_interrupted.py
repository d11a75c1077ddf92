"""Trainings that are killed, told to stop, or run out of disk, in processes of their own."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from mmlinattn.checkpoints import CheckpointError, read_checkpoint
from mmlinattn.engine.checkpoint_hook import newest_checkpoint
from mmlinattn.engine.preemption import EXIT_CODE

from .conftest import CONFIGS
from .test_distributed import free_port

SMALL = [
    'model.backbone.arch.embed_dims=(16,16,16,16)',
    'model.backbone.arch.depths=(1,1,1,1)',
    'model.backbone.arch.num_heads=(1,1,1,1)',
]
SEG = [*SMALL, 'model.neck.in_channels=[16,16,16,16]']


def command(root, task, work, options, *arguments, processes=1) -> list:
    launcher = [sys.executable]
    if processes > 1:
        launcher += ['-m', 'torch.distributed.run', f'--nproc_per_node={processes}']
        launcher += ['--master_port', free_port()]
        arguments = ['--launcher', 'pytorch', *arguments]
    train = [str(root / 'tools/train.py'), str(root / CONFIGS[task]), '--work-dir', str(work)]
    return [*launcher, *train, *arguments, '--cfg-options', *options]


def start(root, *args, **kwargs) -> subprocess.Popen:
    env = dict(os.environ, OMP_NUM_THREADS='1', PYTHONPATH=str(root))
    return subprocess.Popen(
        command(root, *args, **kwargs),
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def wait_for(process: subprocess.Popen, text: str) -> None:
    for line in process.stdout:
        if text in line:
            return
    raise AssertionError(f'{text!r} did not come')


def weights(path) -> dict:
    return torch.load(path, weights_only=False)['state_dict']


def test_killed_at_random_moments(root, options, tmp_path):
    """SIGKILL while checkpoints are written all the time: none is lost, the next run goes on."""
    work, moments = tmp_path / 'work', random.Random(0)
    cfg = [*options('seg', 100_000), *SEG, 'default_hooks.checkpoint.interval=1']
    reached = 0
    for round in range(2):
        process = start(root, 'seg', work, [*cfg, 'default_hooks.checkpoint.max_keep_ckpts=1'],
                        '--resume')  # fmt: skip
        wait_for(process, 'Saving checkpoint at')
        wait_for(process, 'Saving checkpoint at')
        time.sleep(moments.uniform(0, 0.3))
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        newest = newest_checkpoint(work)
        iteration = read_checkpoint(newest)['meta']['iter']
        assert iteration > reached, f'round {round}'
        assert Path((work / 'last_checkpoint').read_text()).name.startswith('iter_')
        reached = iteration
    assert len([*work.glob('*.pth')]) <= 2


def stopped(process: subprocess.Popen, first_line: str, number: int) -> int:
    """Sends the signal after the first iteration; returns the exit code."""
    wait_for(process, first_line)
    os.killpg(process.pid, number)  # every process, workers too, as schedulers do
    output = process.communicate()[0]
    assert 'stopped after iteration' in output, output[-3000:]
    return process.returncode


@pytest.mark.parametrize('task, number, workers', [
    ('det', signal.SIGTERM, 1),
    ('seg', signal.SIGINT, 0),
])  # fmt: skip
def test_told_to_stop(root, run, options, tmp_path, task, number, workers):
    """A checkpoint inside an epoch, exit code 75, and a resumed run equal to a whole one."""
    length, last = (2, 'epoch_2.pth') if task == 'det' else (8, 'iter_8.pth')
    cfg = [*options(task, length, batch=2, workers=workers), 'model.backbone.drop_path_rate=0.3']
    cfg += SEG if task == 'seg' else SMALL + ['model.neck.in_channels=[16,16,16,16]']
    work, tool = tmp_path / 'work', ('train', root / CONFIGS[task])
    first = '[1][1/8]' if task == 'det' else '[1/8]'
    assert stopped(start(root, task, work, cfg), first, number) == EXIT_CODE
    at = read_checkpoint(work / 'interrupted.pth')['meta']['iter']
    assert 0 < at < 8, 'inside an epoch'
    assert newest_checkpoint(work) == str(work / 'interrupted.pth')
    run(*tool, '--work-dir', work, '--resume', '--cfg-options', *cfg)
    assert not (work / 'interrupted.pth').exists()
    run(*tool, '--work-dir', tmp_path / 'whole', '--cfg-options', *cfg)
    expected, got = weights(tmp_path / 'whole' / last), weights(work / last)
    assert all(torch.equal(expected[name], got[name]) for name in expected)


def test_two_processes_stop_at_the_same_iteration(root, options, tmp_path):
    cfg = [*options('seg', 100_000, batch=2), *SEG]
    process = start(root, 'seg', tmp_path, cfg, processes=2)
    assert stopped(process, 'Iter(train)', signal.SIGTERM) != 0
    content = read_checkpoint(tmp_path / 'interrupted.pth')
    assert content['meta']['iter'] > 0 and 'optimizer' in content


def test_full_disk(root, run, options, tmp_path):
    """One line, exit code 2, and the older checkpoint as it was."""
    work = tmp_path / 'work'
    cfg = [*options('seg', 1), *SEG, 'default_hooks.checkpoint.max_keep_ckpts=1']
    run('train', root / CONFIGS['seg'], '--work-dir', work, '--cfg-options', *cfg)
    before = (work / 'iter_1.pth').read_bytes()
    small = f'resource.setrlimit(resource.RLIMIT_FSIZE, ({len(before) // 2},) * 2)'
    tool = root / 'tools/train.py'
    script = f'import resource, runpy; {small}; runpy.run_path({str(tool)!r}, run_name="__main__")'
    arguments = command(root, 'seg', work, [*cfg, 'train_cfg.max_iters=2'], '--resume')[2:]
    done = subprocess.run(
        [sys.executable, '-c', script, *arguments],
        env=dict(os.environ, OMP_NUM_THREADS='1', PYTHONPATH=str(root)),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2, done.stderr[-3000:]
    error = [line for line in done.stderr.splitlines() if line.startswith('error: ')]
    assert len(error) == 1 and 'iter_2.pth cannot be written: File too large' in error[0]
    assert 'Traceback' not in done.stderr
    assert (work / 'iter_1.pth').read_bytes() == before
    assert [path.name for path in work.glob('.*.tmp')] == []
    assert newest_checkpoint(work) == str(work / 'iter_1.pth')


@pytest.fixture
def trained(root, run, options, tmp_path):
    """A work directory with the checkpoints of two iterations."""
    work = tmp_path / 'work'
    cfg = [*options('seg', 2), *SEG, 'default_hooks.checkpoint.interval=1']
    run('train', root / CONFIGS['seg'], '--work-dir', work, '--cfg-options', *cfg)
    return work


def test_resume_takes_the_newest_that_is_whole(trained, capsys, root, run, options):
    (trained / 'best_mIoU_iter_2.pth').write_bytes(b'no candidate')
    newest = trained / 'iter_2.pth'
    newest.write_bytes(newest.read_bytes()[:-1000])
    torch.save(dict(state_dict={'a': torch.ones(1)}), trained / 'exported.pth')
    cfg = [*options('seg', 3), *SEG]
    run('train', root / CONFIGS['seg'], '--work-dir', trained, '--resume', '--cfg-options', *cfg)
    output = capsys.readouterr().out
    assert f'passes over {newest}: ' in output and 'best_mIoU' not in output.split('Loads')[0]
    assert f'passes over {trained / "exported.pth"}: ' in output
    assert 'resumed epoch: 0, iter: 1' in output and (trained / 'iter_3.pth').exists()


def test_a_moved_work_directory_and_none_that_is_whole(trained, tmp_path):
    moved = tmp_path / 'moved'
    shutil.move(trained, moved)
    assert newest_checkpoint(moved) == str(moved / 'iter_2.pth')
    for path in moved.glob('*.pth'):
        path.write_bytes(b'')
    with pytest.raises(CheckpointError, match=r'none of .*iter_2\.pth.* can be resumed from'):
        newest_checkpoint(moved)
    assert newest_checkpoint(tmp_path / 'empty') is None


def test_errors_are_one_line(root, run, options, capsys):
    """Exit code 2; --debug, as all the other tests have it, shows where they come from."""

    def error_of(*arguments):
        with pytest.raises(SystemExit) as stop:
            run('train', *arguments, debug=False)
        assert stop.value.code == 2
        lines = capsys.readouterr().err.splitlines()
        found = [line for line in lines if line.startswith('error: ')]
        assert len(found) == 1 and not any('Traceback' in line for line in lines)
        return found[0]

    seg, cfg = root / CONFIGS['seg'], options('seg')
    assert "FileNotFoundError: config 'nowhere.py' does not exist" in error_of('nowhere.py')
    assert '/sys/mmlinattn' in error_of(seg, '--work-dir', '/sys/mmlinattn', '--cfg-options', *cfg)
    unknown = [*cfg, 'model.backbone.type=RAVLTT']
    assert 'KeyError: ' in (line := error_of(seg, '--cfg-options', *unknown)) and 'RAVLTT' in line
    assert 'none.pth' in error_of(seg, '--resume', 'none.pth', '--cfg-options', *cfg)
