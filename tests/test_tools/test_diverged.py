"""Trainings that diverge, share a folder, differ between processes or from their checkpoint."""

from pathlib import Path

import pytest
import torch
from mmengine.config import DictAction
from mmengine.registry import MODELS

from mmlinattn.checkpoints import CheckpointError, read_checkpoint
from mmlinattn.engine import load_model
from mmlinattn.engine.config import load_config
from mmlinattn.engine.hooks.checkpoint_hook import newest_checkpoint

from ..programs import Program, free_port
from .conftest import CONFIGS
from .test_fsdp2 import FSDP2, needs_shards
from .test_interrupted import SEG, SMALL

pytestmark = pytest.mark.slow

CHECKPOINT = 'default_hooks.checkpoint.'
CLS = [*SMALL, 'model.neck.in_channels=16']


def troubled(root, tmp_path, task, *hooks) -> Path:
    """A quick-start config with hooks of trouble_hook.py, as text."""
    config = tmp_path / f'{task}.py'
    config.write_text(f"""
_base_ = {str(root / CONFIGS[task])!r}
custom_imports = dict(
    imports=['mmlinattn', 'tests.test_tools.trouble_hook', 'tests.test_tools.signal_hook']
)
custom_hooks = [dict(type='ExactResumeHook'), {', '.join(hooks)}]
""")
    return config


def start(root, config, work, options, rank=0, **environment) -> Program:
    output = work.with_name(f'{work.name}.{rank}.out')
    arguments = [config, '--work-dir', work, *(['--launcher', 'pytorch'] if environment else [])]
    return Program(
        root / 'tools/train.py', [*arguments, '--cfg-options', *options], output, [root],
        RANK=str(rank), **environment,
    )  # fmt: skip


def start_two(root, config, work, options, *of_second) -> list:
    group = dict(WORLD_SIZE='2', MASTER_ADDR='127.0.0.1', MASTER_PORT=free_port())
    return [
        start(root, config, work, [*options, *(of_second if rank else ())], rank, **group)
        for rank in range(2)
    ]


def errors(program: Program) -> list:
    """The error lines of a program that has ended with code 2 and without a traceback."""
    assert program.end() == 2, program.text()[-3000:]
    assert 'Traceback' not in program.text(), program.text()[-3000:]
    return [line for line in program.text().splitlines() if line.startswith('error: ')]


def stop_of(run, capsys, *arguments) -> str:
    """The error line of a command in this process that ends with code 2."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        run(*arguments, debug=False)
    assert stop.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    (line,) = (line for line in lines if line.startswith('error: '))
    return line


def test_a_second_training_in_the_same_folder(root, run, options, tmp_path, capsys):
    """It ends before it writes anything; a test may run; a killed training leaves no lock."""
    work, cfg = tmp_path / 'a/work', [*options('seg', 100_000), *SEG, f'{CHECKPOINT}interval=2']
    work.parent.mkdir()
    cfg += [f'{CHECKPOINT}out_dir={tmp_path / "out"}', f'{CHECKPOINT}max_keep_ckpts=1']
    config = root / CONFIGS['seg']
    first = start(root, config, work, cfg)
    first.wait_for('Saving checkpoint at 2')
    used = f'in use by the training of process {first.process.pid} on '
    arguments = ('train', config, '--work-dir', work, '--cfg-options', *cfg)
    assert f'{work} is {used}' in stop_of(run, capsys, *arguments)
    assert len([*work.glob('2*')]) == 1, 'folders of logs'
    # Another work directory, and the same folder of checkpoints.
    other = ('train', config, '--work-dir', tmp_path / 'b/work', '--cfg-options', *cfg)
    assert f'{tmp_path / "out/work"} is {used}' in stop_of(run, capsys, *other)
    first.wait_for('Saving checkpoint at 6')
    first.kill()
    newest = newest_checkpoint(work)
    run('test', config, newest, '--work-dir', work, '--cfg-options', *cfg)
    length = read_checkpoint(newest)['meta']['iter'] + 1
    run('train', config, '--work-dir', work, '--resume', '--cfg-options', *cfg,
        f'train_cfg.max_iters={length}')  # fmt: skip
    assert not [*tmp_path.rglob('.training.lock')] and not [*tmp_path.rglob('.*.tmp')]


@pytest.mark.parametrize('average', [False, True])
def test_weights_that_are_not_finite_replace_no_checkpoint(
    root, run, options, tmp_path, capsys, average
):
    """Neither of the rotation, nor the best one, nor last_checkpoint."""
    hooks = ["dict(type='EMAHook')"] * average
    config = troubled(root, tmp_path, 'seg', f"dict(type='DivergeHook', at=4, average={average})",
                      *hooks)  # fmt: skip
    work, cfg = tmp_path / 'work', [*options('seg', 8), *SEG, 'train_cfg.val_interval=2']
    cfg += [
        f'{CHECKPOINT}interval=2',
        f'{CHECKPOINT}max_keep_ckpts=1',
        f'{CHECKPOINT}save_best=mIoU',
    ]
    line = stop_of(run, capsys, 'train', config, '--work-dir', work, '--cfg-options', *cfg)
    assert 'the training has diverged by iteration 4: 1 weights are NaN or infinite: ' in line
    assert 'backbone.stem.0.conv.weight' in line
    files = {path.name for path in work.glob('*.pth')}
    assert files == {'iter_2.pth', 'best_mIoU_iter_2.pth'}
    assert newest_checkpoint(work) == (work / 'last_checkpoint').read_text()
    for name in files:
        weights = read_checkpoint(work / name)['state_dict']
        assert all(value.isfinite().all() for value in weights.values())


def test_told_to_stop_after_divergence(root, options, tmp_path):
    """No checkpoint to resume from is left, and no code that asks for a restart."""
    config = troubled(root, tmp_path, 'seg', "dict(type='DivergeHook', at=3)",
                      "dict(type='SignalHook')")  # fmt: skip
    work = tmp_path / 'work'
    program = start(root, config, work, [*options('seg', 100), *SEG], SIGNAL_AT='3',
                    WORLD_SIZE='1', MASTER_ADDR='127.0.0.1', MASTER_PORT=free_port())  # fmt: skip
    (line,) = errors(program)
    assert 'the training has diverged by iteration 3' in line
    assert not [*work.glob('*.pth')] and not (work / 'last_checkpoint').exists()


def test_all_processes_end_when_the_loss_is_not_finite(root, options, tmp_path):
    config = troubled(root, tmp_path, 'seg', "dict(type='DivergeHook', at=1)")
    cfg = [*options('seg', 100, batch=2), *SEG, f'{CHECKPOINT}interval=100']
    for program in start_two(root, config, tmp_path / 'work', cfg):
        (line,) = errors(program)
        assert 'TrainingDiverged: iteration 20: no finite loss since iteration 3 ' in line
    assert not [*tmp_path.glob('work/*.pth')]


@pytest.fixture
def diverged(root, options, tmp_path):
    """A config of Shapes, and a whole training's checkpoint of it with a weight that is NaN."""
    cfg = load_config(str(root / CONFIGS['seg']))
    overrides = [*options('seg', 1), *SEG]
    pairs = (option.split('=', 1) for option in overrides)
    cfg.merge_from_dict({key: DictAction._parse_iterable(value) for key, value in pairs})
    weights = MODELS.build(cfg.model).state_dict()
    weights['decode_head.conv_seg.bias'][1] = float('nan')
    path = tmp_path / 'nan.pth'
    state = dict(state_dict=weights, meta=dict(iter=1, epoch=0), message_hub={})
    torch.save(state, path)
    return cfg, path, overrides


def test_weights_that_are_not_finite_are_not_used(diverged, root, run, capsys, tmp_path):
    """By no command: test, train, and all that build a model with a checkpoint (predict, ...)."""
    cfg, path, overrides = diverged
    message = f'{path} has 1 weights that are NaN or infinite: decode_head.conv_seg.bias'
    common = (root / CONFIGS['seg'],)
    for arguments in (
        ('test', *common, path, '--work-dir', tmp_path / 'test'),
        ('train', *common, '--resume', path, '--work-dir', tmp_path / 'resume'),
    ):
        line = stop_of(run, capsys, *arguments, '--cfg-options', *overrides)
        assert f'CheckpointError: {message}' in line
    tuned = ('train', *common, '--work-dir', tmp_path / 'tune', '--cfg-options', *overrides)
    assert message in stop_of(run, capsys, *tuned, f'load_from={path}')
    with pytest.raises(CheckpointError, match='decode_head.conv_seg.bias'):
        load_model(cfg, str(path))


def test_resume_passes_over_weights_that_are_nan(diverged, tmp_path):
    _, path, _ = diverged
    content = torch.load(path, weights_only=False)
    content['state_dict']['decode_head.conv_seg.bias'].zero_()
    torch.save(content, tmp_path / 'iter_1.pth')
    (tmp_path / 'last_checkpoint').write_text(str(path))
    assert newest_checkpoint(tmp_path) == str(tmp_path / 'iter_1.pth')


@needs_shards
def test_a_full_disk_of_one_process(root, options, tmp_path):
    """Of the first one, which writes checkpoints, or of the second one, which writes its shards:
    all processes end, and say whose disk it is."""
    for rank, size, spread in ((0, 50_000, []), (1, 50_000, FSDP2)):
        work = tmp_path / f'work{rank}'
        hook = f"dict(type='FullDiskHook', at=3, rank={rank}, size={size})"
        config = troubled(root, tmp_path, 'cls', hook)
        cfg = [*options('cls', 2, batch=2), *CLS, *spread, f'{CHECKPOINT}by_epoch=False']
        cfg += [f'{CHECKPOINT}interval=2', f'{CHECKPOINT}max_keep_ckpts=1']
        programs = start_two(root, config, work, cfg)
        for program in programs:
            (line,) = errors(program)
            assert 'iter_4.pth cannot be written' in line, line
        assert newest_checkpoint(work) == str(work / 'iter_2.pth')
        assert {path.name for path in work.glob('iter*.pth')} == {'iter_2.pth'}


@pytest.mark.parametrize(
    'option, values',
    [('optim_wrapper.optimizer.lr', (0.003, 0.5)), ('randomness.seed', (0, 7))],
)
def test_processes_with_other_configs(root, options, tmp_path, option, values):
    work, cfg = tmp_path / 'work', [*options('seg', 100), *SEG]
    programs = start_two(root, root / CONFIGS['seg'], work, cfg, f'{option}={values[1]}')
    for program in programs:
        (line,) = errors(program)
        of_each = f'{values[0]} in process 0 and {values[1]} in process 1; start all processes with'
        assert f'{option} of the config is {of_each}' in line
    assert not work.exists()


@pytest.mark.parametrize(
    'change, reason',
    [
        ('optim_wrapper.optimizer.type=SGD', 'SGD misses dampening, momentum'),
        (lambda c: c['optimizer']['param_groups'].append({'params': []}), 'parameter groups'),
        (lambda c: c.update(message_hub=dict(version=2)), 'must contain key: `log_scalars`'),
        (lambda c: c['meta'].update(iter='1'), 'TypeError: unsupported operand'),
    ],
)
def test_state_that_this_training_cannot_take(root, run, options, tmp_path, capsys, change, reason):
    """Of another optimizer, or as another version of the package may write it."""
    cfg, config = [*options('cls', 1), *CLS], root / CONFIGS['cls']
    run('train', config, '--work-dir', tmp_path, '--cfg-options', *cfg)
    path = tmp_path / 'epoch_1.pth'
    if callable(change):
        content = torch.load(path, weights_only=False)
        change(content)
        torch.save(content, path)
    else:
        cfg += [change]
    arguments = ('--work-dir', tmp_path, '--resume', path, '--cfg-options', *cfg)
    line = stop_of(run, capsys, 'train', config, *arguments, 'train_cfg.max_epochs=2')
    assert f'CheckpointError: {path} cannot be resumed from (' in line and reason in line
