"""Trainings that are killed, told to stop, or run out of disk, in processes of their own."""

import os
import random
import resource
import shutil
import signal
import time
from functools import partial
from pathlib import Path

import pytest
import torch

from mmlinattn.checkpoints import CheckpointError, read_checkpoint
from mmlinattn.engine.hooks.checkpoint_hook import AtomicCheckpointHook, newest_checkpoint
from mmlinattn.utils.errors import InputError

from ..programs import Program, free_port
from ..sizes import size
from .conftest import CONFIGS

pytestmark = pytest.mark.slow

EXIT_CODE = 75  # EX_TEMPFAIL, as schedulers and the pages know it
SMALL = [
    'model.backbone.arch.embed_dims=(16,16,16,16)',
    'model.backbone.arch.depths=(1,1,1,1)',
    'model.backbone.arch.num_heads=(1,1,1,1)',
]
SEG = [*SMALL, 'model.neck.in_channels=[16,16,16,16]']


def signalling(root, tmp_path, task) -> Path:
    """A quick-start config whose training signals itself, see signal_hook.py."""
    config = tmp_path / f'{task}.py'
    config.write_text(f"""
_base_ = {str(root / CONFIGS[task])!r}
custom_imports = dict(imports=['mmlinattn', 'tests.test_tools.signal_hook'])
default_hooks = dict(checkpoint=dict(type='AtomicCheckpointHook'))
custom_hooks = [dict(type='ExactResumeHook'), dict(type='PreemptionHook'), dict(type='SignalHook')]
""")
    return config


def start(root, config, work, options, *arguments, signal_at=0, **environment) -> Program:
    arguments = [config, '--work-dir', work, *arguments, '--cfg-options', *options]
    output = work.with_name(f'{work.name}.{len([*work.parent.glob("*.out")])}.out')
    environment['SIGNAL_AT'] = str(signal_at)
    return Program(root / 'tools/train.py', arguments, output, [root], **environment)


def weights(path) -> dict:
    return torch.load(path, weights_only=False)['state_dict']


@pytest.mark.long
def test_killed_at_random_moments(root, options, tmp_path):
    """SIGKILL while checkpoints are written all the time: none is lost, the next run goes on."""
    work, moments, config = tmp_path / 'work', random.Random(0), signalling(root, tmp_path, 'seg')
    cfg = [*options('seg', 600), *SEG, 'default_hooks.checkpoint.interval=1']
    reached = 0
    for round in range(size(2, 12)):
        keep = 'default_hooks.checkpoint.max_keep_ckpts=1'
        program = start(root, config, work, [*cfg, keep], '--resume')
        program.wait_for('Saving checkpoint at', times=2)
        time.sleep(moments.uniform(0, 0.3))
        program.kill()
        assert program.end() == -signal.SIGKILL
        newest = newest_checkpoint(work)
        iteration = read_checkpoint(newest)['meta']['iter']
        assert iteration > reached, f'round {round}'
        reached = iteration
    assert len([*work.glob('*.pth')]) <= 2


@pytest.mark.parametrize('task, workers, at', [('det', 1, 2), ('det', 0, 4), ('seg', 2, 3)])
def test_told_to_stop(root, run, options, tmp_path, task, workers, at):
    """A checkpoint inside an epoch or at its end, exit code 75, and a resumed run equal to a whole
    one. Every process gets the signal, workers too, as schedulers do."""
    length, last = (2, 'epoch_2.pth') if task == 'det' else (8, 'iter_8.pth')
    cfg = [*options(task, length, workers=workers), 'model.backbone.drop_path_rate=0.3', *SEG]
    work, config = tmp_path / 'work', signalling(root, tmp_path, task)
    program = start(root, config, work, cfg, signal_at=at)
    assert program.end() == EXIT_CODE, program.text()[-3000:]
    assert f'Stopped after iteration {at}; --resume continues from ' in program.text()
    assert newest_checkpoint(work) == str(work / 'interrupted.pth')
    run('train', config, '--work-dir', work, '--resume', '--cfg-options', *cfg)
    assert not (work / 'interrupted.pth').exists()
    run('train', config, '--work-dir', tmp_path / 'whole', '--cfg-options', *cfg)
    expected, got = weights(tmp_path / 'whole' / last), weights(work / last)
    assert all(torch.equal(expected[name], got[name]) for name in expected)


def test_average_and_repeated_views_are_resumed_exactly(root, run, options, tmp_path):
    """Told to stop inside an epoch, and killed later: the average is that of a whole run."""
    config = tmp_path / 'averaged.py'
    config.write_text(f"""
_base_ = {str(root / CONFIGS['cls'])!r}
custom_imports = dict(imports=['mmlinattn', 'tests.test_tools.signal_hook'])
custom_hooks = [
    dict(type='ExactResumeHook'),
    dict(type='PreemptionHook'),
    dict(type='SignalHook'),
    dict(type='ModelEMAHook', momentum=0.1, update_buffers=True),
]
train_dataloader = dict(sampler=dict(_delete_=True, type='RepeatAugSampler'))
default_hooks = dict(checkpoint=dict(type='AtomicCheckpointHook', save_best='accuracy/top1_best'))
""")
    cfg = [*options('cls', 3), *SEG[:3], 'model.neck.in_channels=16', 'train_cfg.val_interval=1']
    work, whole = tmp_path / 'work', tmp_path / 'whole'
    program = start(root, config, work, cfg, signal_at=3)
    assert program.end() == EXIT_CODE, program.text()[-3000:]
    program = start(root, config, work, cfg, '--resume')
    program.wait_for('Saving checkpoint at 2')
    program.kill()
    program.end()
    run('train', config, '--work-dir', work, '--resume', '--cfg-options', *cfg)
    run('train', config, '--work-dir', whole, '--cfg-options', *cfg)
    contents = [torch.load(path / 'epoch_3.pth', weights_only=False) for path in (whole, work)]
    for section in ('state_dict', 'ema_state_dict'):
        expected, got = (content[section] for content in contents)
        assert expected.keys() == got.keys()
        assert all(torch.equal(expected[name], got[name]) for name in expected), section


def test_two_processes_stop_at_the_same_iteration(root, options, tmp_path):
    """One of them is told. Before, each has validated another number of images."""
    cfg = [*options('seg', 600, batch=2), *SEG, 'train_cfg.val_interval=2']
    cfg += ['val_dataloader.sampler.round_up=False', 'val_dataloader.dataset.indices=3']
    config = signalling(root, tmp_path, 'seg')
    group = dict(WORLD_SIZE='2', MASTER_ADDR='127.0.0.1', MASTER_PORT=free_port())
    work = tmp_path / 'work'
    programs = [
        start(root, config, work, cfg, '--launcher', 'pytorch', signal_at=3, RANK=str(i), **group)
        for i in range(2)
    ]
    for program in programs:
        assert program.end() == EXIT_CODE, program.text()[-3000:]
    output = programs[0].text()
    assert 'Stopped after iteration 3' in output and 'mIoU' in output
    content = read_checkpoint(work / 'interrupted.pth')
    assert content['meta']['iter'] == 3 and 'optimizer' in content


def test_full_disk(root, run, options, tmp_path, error_of):
    """One line, exit code 2, and the older checkpoint as it was."""
    work = tmp_path / 'work'
    cfg = [*options('seg', 1), *SEG, 'default_hooks.checkpoint.max_keep_ckpts=1']
    config = signalling(root, tmp_path, 'seg')
    run('train', config, '--work-dir', work, '--cfg-options', *cfg)
    before = (work / 'iter_1.pth').read_bytes()
    arguments = [config, '--work-dir', work, '--resume']
    arguments += ['--cfg-options', *cfg, 'train_cfg.max_iters=2']
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, limits[1]))
    try:
        error = error_of(run, 'train', *arguments, debug=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert 'iter_2.pth cannot be written: File too large' in error
    assert (work / 'iter_1.pth').read_bytes() == before and not (work / 'iter_2.pth').exists()
    assert [path.name for path in work.glob('.*.tmp')] == []
    assert newest_checkpoint(work) == str(work / 'iter_1.pth')


@pytest.fixture
def trained(quick, tmp_path):
    """A work directory with the checkpoints of two iterations."""
    cfg = [*SEG, 'default_hooks.checkpoint.interval=1']
    quick('train', 'seg', '--work-dir', tmp_path / 'work', length=2, cfg=cfg)
    return tmp_path / 'work'


def test_resume_takes_the_newest_that_is_whole(trained, capsys, quick):
    (trained / 'best_mIoU_iter_2.pth').write_bytes(b'no candidate')
    newest = trained / 'iter_2.pth'
    newest.write_bytes(newest.read_bytes()[:-1000])
    torch.save(dict(state_dict={'a': torch.ones(1)}), trained / 'exported.pth')
    quick('train', 'seg', '--work-dir', trained, '--resume', length=3, cfg=SEG)
    output = capsys.readouterr().out
    assert f'passes over {newest}: ' in output
    assert 'best_mIoU' not in output.split('Load checkpoint')[0]
    assert f'passes over {trained / "exported.pth"}: ' in output
    assert 'resumed epoch: 0, iter: 1' in output and (trained / 'iter_3.pth').exists()


def test_moved_and_copied_work_directories(trained, tmp_path):
    moved, copied = tmp_path / 'moved', tmp_path / 'copied'
    shutil.move(trained, moved)
    assert newest_checkpoint(moved) == str(moved / 'iter_2.pth')
    shutil.copytree(moved, copied)
    for path, when in ((copied / 'iter_2.pth', 1), (copied / 'iter_1.pth', 2)):  # other times
        os.utime(path, (when, when))
    assert newest_checkpoint(copied) == str(copied / 'iter_2.pth')
    # The original goes on: that is nothing to the copy.
    shutil.copy(moved / 'iter_2.pth', moved / 'iter_3.pth')
    (moved / 'last_checkpoint').write_text(str(moved / 'iter_3.pth'))
    assert newest_checkpoint(copied) == str(copied / 'iter_2.pth')
    # A copy whose newest was removed, to go on from an earlier one.
    (copied / 'last_checkpoint').write_text(str(moved / 'iter_3.pth'))
    (copied / 'iter_2.pth').unlink()
    assert newest_checkpoint(copied) == str(copied / 'iter_1.pth')


def test_none_that_is_whole(trained, tmp_path):
    for path in trained.glob('*.pth'):
        path.write_bytes(b'')
    with pytest.raises(CheckpointError, match='no checkpoint in .* can be resumed from'):
        newest_checkpoint(trained)
    for path in trained.glob('*.pth'):
        path.unlink()
    with pytest.raises(CheckpointError, match='no checkpoint in .* can be resumed from'):
        newest_checkpoint(trained)  # last_checkpoint is there: no new start
    (trained / 'last_checkpoint').unlink()
    assert newest_checkpoint(trained) is None


def test_other_names_and_places_of_checkpoints(quick, tmp_path):
    work, options = tmp_path / 'work', ['interval=1', 'max_keep_ckpts=1', 'filename_tmpl=step{}.pt']
    options += [f'out_dir={tmp_path / "out"}', 'type=AtomicCheckpointHook']
    cfg = [*SEG, *(f'default_hooks.checkpoint.{option}' for option in options)]
    quick('train', 'seg', '--work-dir', work, length=2, cfg=cfg)
    assert [path.name for path in (tmp_path / 'out/work').iterdir()] == ['step2.pt']
    assert newest_checkpoint(work) == str(tmp_path / 'out/work/step2.pt')
    with pytest.raises(ValueError, match="AtomicCheckpointHook writes to a folder, got .*'local'"):
        AtomicCheckpointHook(backend_args=dict(backend='local'))


def test_an_epoch_of_another_length(root, run, options, tmp_path):
    config, cfg = signalling(root, tmp_path, 'det'), [*options('det', 1), *SEG]
    run('train', config, '--work-dir', tmp_path, '--cfg-options', *cfg)
    cfg += ['train_dataloader.batch_size=2', 'train_cfg.max_epochs=2']
    with pytest.raises(InputError, match='an epoch has 8 batches, in the checkpoint 4: resume'):
        run('train', config, '--work-dir', tmp_path, '--resume', '--cfg-options', *cfg)


@pytest.mark.parametrize(
    'change, reason',
    [
        ('optim_wrapper.optimizer.type=SGD', 'SGD misses dampening, momentum'),
        (lambda c: c['optimizer']['param_groups'].append({'params': []}), 'parameter groups'),
        (lambda c: c.update(message_hub=dict(version=2)), 'must contain key: `log_scalars`'),
        (
            lambda c: c['optimizer']['state'][0].update(exp_avg=torch.zeros(2)),
            r'exp_avg of a parameter has the shape \(2,\), the parameter has \(\d',
        ),
    ],
)
def test_state_that_this_training_cannot_take(quick, tmp_path, change, reason):
    """Of another optimizer, or as another version of the package may write it."""
    quick('train', 'seg', cfg=SEG)
    path, cfg = tmp_path / 'iter_1.pth', [*SEG]
    if callable(change):
        content = torch.load(path, weights_only=False)
        change(content)
        torch.save(content, path)
    else:
        cfg += [change]
    with pytest.raises(CheckpointError, match=rf'iter_1.pth cannot be resumed from .*{reason}'):
        quick('train', 'seg', '--resume', path, cfg=cfg)


def test_errors_are_one_line(root, run, options, error_of):
    """Exit code 2; --debug, as all the other tests have it, shows where they come from."""
    error_of = partial(error_of, run, 'train', debug=False)
    seg, cfg = root / CONFIGS['seg'], options('seg')
    assert "FileNotFoundError: config 'nowhere.py' does not exist" in error_of('nowhere.py')
    assert '/sys/mmlinattn' in error_of(seg, '--work-dir', '/sys/mmlinattn', '--cfg-options', *cfg)
    unknown = [*cfg, 'model.backbone.type=RAVLTT']
    assert "is 'RAVLTT'; did you mean RAVLT?" in error_of(seg, '--cfg-options', *unknown)
    assert 'none.pth' in error_of(seg, '--resume', 'none.pth', '--cfg-options', *cfg)
