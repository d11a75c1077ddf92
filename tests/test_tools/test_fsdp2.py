"""Trainings that are spread over processes, beside those that are not."""

import json
import os
import pickle
import random
import resource
import signal
import sys
import time
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from torch import distributed as dist
from torch.distributed import checkpoint as dcp
from torch.distributed import fsdp

from mmlinattn.analysis.training_memory import gathered_parameters, training_memory
from mmlinattn.checkpoints import (
    CheckpointError,
    consolidate,
    is_sharded,
    read_checkpoint,
    remove_lost_shards,
    save_sharded,
    tensors_of,
)
from mmlinattn.engine import FSDP2Strategy, build_model
from mmlinattn.engine.distributed import launch
from mmlinattn.engine.hooks.checkpoint_hook import newest_checkpoint
from mmlinattn.engine.hooks.preemption_hook import EXIT_CODE
from mmlinattn.models.layers.activation_checkpointing import checkpoint_forward

from ..programs import Program, free_port
from ..sizes import LONG, size
from .conftest import CONFIGS

pytestmark = pytest.mark.slow

needs_shards = pytest.mark.skipif(
    not hasattr(dcp, 'HuggingFaceStorageReader') or not hasattr(fsdp, 'fully_shard'),
    reason=f'torch {torch.__version__} has no fully_shard, or no shards of safetensors files',
)
SMALL = [
    'model.backbone.arch.embed_dims=(16,16,16,16)',
    'model.backbone.arch.depths=(1,1,1,1)',
    'model.backbone.arch.num_heads=(1,1,1,1)',
]
CLS = [*SMALL, 'model.neck.in_channels=16']
DET = [*SMALL, 'model.neck.in_channels=[16,16,16,16]']
FSDP2 = ['runner_type=FlexibleRunner', 'strategy.type=FSDP2Strategy', 'strategy.shard=[RAVLTBlock]']


def recording(root, tmp_path) -> Path:
    config = tmp_path / 'recording.py'
    config.write_text(f"""
_base_ = {str(root / CONFIGS['cls'])!r}
custom_imports = dict(imports=['mmlinattn', 'record_hook', 'signal_hook'])
custom_hooks = [
    dict(type='ExactResumeHook'), dict(type='RecordLossHook'), dict(type='SignalHook')
]
""")
    return config


def start(root, config, work, options, processes: int, *arguments, signal_at=0) -> list:
    group = dict(WORLD_SIZE=str(processes), MASTER_ADDR='127.0.0.1', MASTER_PORT=free_port())
    environment = dict(RECORD_LOSS=f'{work}.loss', SIGNAL_AT=str(signal_at), **group)
    arguments = [config, '--work-dir', work, '--launcher', 'pytorch', *arguments]
    started = len([*work.parent.glob(f'{work.name}.*.out')])
    return [
        Program(
            root / 'tools/train.py', [*arguments, '--cfg-options', *options],
            work.with_name(f'{work.name}.{started + i}.out'), [root, root / 'tests/test_tools'],
            RANK=str(i), **environment,
        )
        for i in range(processes)
    ]  # fmt: skip


def end(programs, code: int = 0) -> str:
    """What the first has printed."""
    for program in programs:
        assert program.end() == code, program.text()[-3000:]
    return programs[0].text()


def losses(work, processes: int) -> torch.Tensor:
    files = [work.with_name(f'{work.name}.loss.{rank}') for rank in range(processes)]
    return torch.tensor([[float(x) for x in file.read_text().split()] for file in files])


def norms(work) -> list:
    lines = [line for path in work.glob('*/vis_data/scalars.json') for line in path.open()]
    return [n['grad_norm'] for n in sorted(map(json.loads, lines), key=lambda n: n.get('step', 0))
            if 'grad_norm' in n]  # fmt: skip


@needs_shards
@pytest.mark.long
def test_equal_to_data_parallel_training(root, options, tmp_path):
    """26 steps on two processes, the second half of them resumed from one file; then 13 on four,
    resumed from the shards of two."""
    config = recording(root, tmp_path)
    cfg = [*options('cls', 2, batch=2), *CLS]
    ddp, spread = tmp_path / 'ddp', tmp_path / 'spread'
    end(start(root, config, ddp, cfg, 2))
    printed = end(start(root, config, spread, [*cfg, *FSDP2], 2, signal_at=15), EXIT_CODE)
    assert 'SIGTERM: stopped after iteration 15' in printed
    content = read_checkpoint(spread / 'interrupted.pth', fill=False)
    assert is_sharded(content) and content['meta']['iter'] == 15
    assert all(tensor.is_meta for key, *_, tensor in tensors_of(content) if 'exp_avg' in key)

    whole = tmp_path / 'whole.pth'
    consolidate(spread / 'interrupted.pth', whole)
    resumed = [*cfg, *FSDP2, 'strategy.checkpointing=[RAVLTBlock]']
    end(start(root, config, spread, resumed, 2, '--resume', whole))
    assert not [*spread.glob('interrupted*')]
    expected, got = losses(ddp, 2), losses(spread, 2)
    assert expected.shape == got.shape == (2, 26)
    assert (expected - got).abs().max() < 1e-5
    assert norms(ddp) == pytest.approx(norms(spread), rel=1e-4) and len(norms(ddp)) == 26
    ours, theirs = (read_checkpoint(work / 'epoch_2.pth') for work in (spread, ddp))
    assert list(ours['state_dict']) == list(theirs['state_dict'])
    for name, value in theirs['state_dict'].items():
        if 'stem' not in name:  # where biases have no gradient but rounding
            torch.testing.assert_close(ours['state_dict'][name], value, rtol=1e-4, atol=1e-5)

    # What a process has is what is estimated.
    shrunk = Config.fromfile(root / CONFIGS['cls'])
    shrunk.merge_from_dict(dict(option.split('=') for option in CLS[-1:]))
    shrunk.model.backbone.arch.update(embed_dims=(16,) * 4, depths=(1,) * 4, num_heads=(1,) * 4)
    shrunk.model.neck.in_channels = 16
    estimated = training_memory(shrunk, [2])[2]
    parts = ', '.join(f'{size / 2**20:.3f} MiB of {part}' for part, size in estimated.items())
    assert f'this process has {parts}' in printed
    gathered = gathered_parameters(build_model(shrunk), ['RAVLTBlock'])
    assert gathered['rest'] < sum(p.nbytes for p in build_model(shrunk).parameters())

    with pytest.raises(ValueError, match='did you mean RAVLTBlock'):
        gathered_parameters(build_model(shrunk), ['RAVLTBlok'])

    four, mesh = [*options('cls', 2, batch=1), *CLS], 'strategy.mesh.replicate=2'
    ddp4, spread4 = tmp_path / 'ddp4', tmp_path / 'spread4'
    end(start(root, config, ddp4, four, 4, '--resume', ddp / 'epoch_1.pth'))
    end(start(root, config, spread4, [*four, *FSDP2, mesh], 4, '--resume', spread / 'epoch_1.pth'))
    expected, got = losses(ddp4, 4), losses(spread4, 4)
    assert expected.shape == got.shape == (4, 13)
    assert (expected - got).abs().max() < 1e-5


@needs_shards
@pytest.mark.long
@pytest.mark.skipif(not LONG, reason='three trainings of four processes; make test-long does')
def test_equal_on_four_processes(root, options, tmp_path):
    """26 steps, the last six resumed. Without batch norms, which make roundings grow."""
    norms = ('model.backbone.norm_cfg', 'model.neck.norm_cfg')
    grouped = [f'{norm}.{o}' for norm in norms for o in ('type=GN', 'num_groups=4')]
    config, cfg = recording(root, tmp_path), [*options('cls', 2, batch=1), *CLS, *grouped]
    ddp, spread = tmp_path / 'ddp', tmp_path / 'spread'
    end(start(root, config, ddp, cfg, 4))
    mesh = [*FSDP2, 'strategy.mesh.replicate=2']
    end(start(root, config, spread, [*cfg, *mesh], 4, signal_at=20), EXIT_CODE)
    expected, got = losses(ddp, 4), losses(spread, 4)
    assert expected.shape == (4, 26) and got.shape == (4, 20)
    assert (expected[:, :20] - got).abs().max() < 1e-5
    end(start(root, config, spread, [*cfg, *mesh], 4, '--resume'))
    assert (expected - losses(spread, 4)).abs().max() < 1e-5


@needs_shards
@pytest.mark.long
def test_killed_while_shards_are_written(root, options, tmp_path):
    """SIGKILL to both processes at any moment: no checkpoint is lost, the next run goes on."""
    work, moments = tmp_path / 'work', random.Random(0)
    saves = [f'default_hooks.checkpoint.{o}' for o in ('by_epoch=False', 'interval=1')]
    cfg = [*options('cls', 100, batch=1), *CLS, *FSDP2, *saves]
    reached = 0
    for round in range(size(2, 6)):
        keep = 'default_hooks.checkpoint.max_keep_ckpts=1'
        config = root / CONFIGS['cls']
        programs = start(root, config, work, [*cfg, keep], 2, '--resume')
        programs[0].wait_for('Saving checkpoint at', times=3)
        time.sleep(moments.uniform(0, 0.5))
        for program in programs:  # at once: one alone would end by an error of its own
            os.killpg(program.process.pid, signal.SIGKILL)
        assert [program.end() for program in programs] == [-signal.SIGKILL] * 2
        content = read_checkpoint(newest_checkpoint(work))
        assert content['meta']['iter'] > reached, f'round {round}'
        assert not any(tensor.is_meta for *_, tensor in tensors_of(content))
        reached = content['meta']['iter']
    remove_lost_shards(work)  # as a training does when it starts
    assert len([*work.glob('*.shards')]) == len([*work.glob('*.pth')]) <= 2


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """This process as a group of one."""
    monkeypatch.setattr(launch, 'leave_process_group', lambda: None)
    store = dist.FileStore(str(tmp_path / 'store'), 1)
    dist.init_process_group('gloo', store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def weights(work) -> dict:
    return read_checkpoint((work / 'last_checkpoint').read_text())['state_dict']


@needs_shards
def test_a_detector(root, run, options, tmp_path, alone):
    """Mask R-CNN; what it leaves is tested and fine-tuned from as any checkpoint is."""
    cfg = [*options('det'), *DET, 'train_dataloader.dataset.indices=8']
    spread, plain = tmp_path / 'spread', tmp_path / 'plain'
    run('train', root / CONFIGS['det'], '--work-dir', plain, '--cfg-options', *cfg)
    run('train', root / CONFIGS['det'], '--work-dir', spread, '--cfg-options', *cfg, *FSDP2)
    expected, got = weights(plain), weights(spread)
    assert list(expected) == list(got)
    for name, value in expected.items():
        torch.testing.assert_close(got[name], value, rtol=1e-4, atol=1e-5, msg=name)
    checkpoint = spread / 'epoch_1.pth'
    run('test', root / CONFIGS['det'], checkpoint, '--work-dir', plain, '--cfg-options', *cfg)
    tuned = [f'load_from={checkpoint}', 'optim_wrapper.optimizer.lr=0', 'param_scheduler=[]']
    again = tmp_path / 'again'
    run('train', root / CONFIGS['det'], '--work-dir', again, '--cfg-options', *cfg, *FSDP2, *tuned)
    for name, value in weights(again).items():
        if 'running' not in name and 'num_batches' not in name:
            assert torch.equal(value, got[name]), name


@needs_shards
def test_blocks_in_bfloat16(root, run, options, tmp_path, alone):
    cfg = [*options('cls', batch=16), *CLS, *FSDP2]
    mp = ['strategy.mp.param_dtype=bfloat16', 'strategy.mp.reduce_dtype=float32']
    trained = []
    for name, more in (('full', []), ('half', mp)):
        work = tmp_path / name
        run('train', root / CONFIGS['cls'], '--work-dir', work, '--cfg-options', *cfg, *more)
        trained.append(weights(work))
    full, half = trained
    assert all(value.dtype == full[name].dtype for name, value in half.items())
    name = 'backbone.stages.3.0.ffn.fc1.weight'
    assert not torch.equal(full[name], half[name])
    torch.testing.assert_close(full[name], half[name], rtol=0, atol=1e-2)


def test_computed_again_in_the_backward_pass():
    layer, calls, x = torch.nn.BatchNorm1d(2), [], torch.randn(5, 2, requires_grad=True)
    expected = torch.autograd.grad(torch.nn.BatchNorm1d(2)(x).pow(3).sum(), x)[0]
    forward = layer.forward
    layer.forward = lambda x: calls.append(1) or forward(x)
    checkpoint_forward(layer)
    out = layer(x)
    assert len(calls) == 1
    torch.testing.assert_close(torch.autograd.grad(out.pow(3).sum(), x)[0], expected)
    assert len(calls) == 2 and int(layer.num_batches_tracked) == 1
    with torch.no_grad():
        assert layer(x).grad_fn is None and len(calls) == 3


WRONG = [
    ('shard', ['RAVLTBlok'], 'has no module of class .RAVLTBlok.; did you mean RAVLTBlock'),
    ('shard', 'RAVLTBlock', 'shard must be a list of names of classes'),
    ('checkpointing', ['Blok'], 'checkpointing: ImageClassifier has no module of class .Blok.'),
    ('mesh', dict(replicate=2, shard=2), 'mesh: replicate=2 times shard=2 is 4, and there are 1'),
    ('mesh', dict(rows=2), 'mesh has replicate and shard, got .rows.'),
    ('mesh', dict(shard=0), 'mesh.shard must be a positive integer, got 0'),
    ('mp', dict(param_dtype='half'), 'mp.param_dtype must be one of .*got .half.'),
    ('mp', dict(dtype='float16'), 'mp has param_dtype and reduce_dtype, got .dtype.'),
]


@needs_shards
@pytest.mark.parametrize('argument, value, message', WRONG)
def test_wrong_arguments(tmp_path, root, alone, argument, value, message):
    with pytest.raises((ValueError, TypeError), match=message):
        strategy = FSDP2Strategy(
            work_dir=str(tmp_path), env_kwargs=dict(launcher='none'),
            **{'shard': ['RAVLTBlock'], argument: value},
        )  # fmt: skip
        strategy.build_model(build_model(Config.fromfile(root / CONFIGS['cls'])))


REFUSED = [
    ('find_unused_parameters=True', 'a parameter must have a gradient in every process'),
    ('custom_hooks=[dict(type="EMAHook")]', 'does not go with an EMAHook'),
    ('compile=True', 'does not compile models'),
    ('model_wrapper_cfg.type=MMDistributedDataParallel', 'FSDP2Strategy does not use it'),
    ('default_hooks.checkpoint.out_dir=s3://a/b', 'writes to a folder'),
    ('optim_wrapper.type=CPUAmpOptimWrapper', 'mixed precision by strategy.mp'),
    ('runner_type=Runner', 'strategy: MMEngine uses it with'),
    ('strategy.type=DDPStrategy', 'a kill may lose checkpoints'),
    ('runner_type=OtherRunner', "must be 'Runner' or 'FlexibleRunner'"),
]


@needs_shards
@pytest.mark.parametrize('option, message', REFUSED)
def test_what_does_not_go_together(root, run, options, tmp_path, capsys, alone, option, message):
    config = tmp_path / 'config.py'
    config.write_text(f'_base_ = {str(root / CONFIGS["cls"])!r}\n')
    if option.endswith(']'):
        with config.open('a') as file:
            file.write(option + '\n')
        option = 'log_level=INFO'
    cfg = [*options('cls'), *CLS, *FSDP2, option]
    with pytest.raises(SystemExit) as stop:
        run('train', config, '--work-dir', tmp_path, '--cfg-options', *cfg, debug=False)
    assert stop.value.code == 2 and message in capsys.readouterr().err


def test_an_older_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, 'torch.distributed.fsdp', None)
    with pytest.raises(ImportError, match='FSDP2Strategy needs fully_shard and safe shards'):
        FSDP2Strategy(shard=[])


@needs_shards
def test_one_process_without_a_launcher(tmp_path):
    with pytest.raises(ValueError, match='start them with torchrun'):
        FSDP2Strategy(shard=[], work_dir=str(tmp_path), env_kwargs=dict(launcher='none'))


def spread(tensor: torch.Tensor) -> torch.Tensor:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    return distribute_tensor(tensor, init_device_mesh('cpu', (1,)), [Shard(0)])


@pytest.fixture
def sharded(tmp_path, alone) -> Path:
    path, weight = tmp_path / 'epoch_1.pth', spread(torch.arange(6.0).reshape(3, 2))
    save_sharded(path, dict(state_dict=dict(w=weight, b=torch.ones(2)), meta=dict(iter=1)))
    return path


class Attack:
    def __reduce__(self):
        return (exec, ('raise SystemExit("code of a checkpoint ran")',))


@needs_shards
def test_shards_that_are_not_what_was_written(sharded):
    assert read_checkpoint(sharded)['state_dict']['w'].tolist() == [[0, 1], [2, 3], [4, 5]]
    (folder,) = sharded.parent.glob('*.shards')
    (shard,) = folder.iterdir()
    # The file from which torch.distributed.checkpoint would unpickle.
    (folder / '.metadata').write_bytes(pickle.dumps(Attack()))
    with pytest.raises(CheckpointError, match='has other files'):
        read_checkpoint(sharded)
    (folder / '.metadata').unlink()
    content = shard.read_bytes()
    shard.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(CheckpointError, match='is damaged: the content of'):
        read_checkpoint(sharded)
    with pytest.raises(CheckpointError, match='none of'):
        newest_checkpoint(sharded.parent)
    shard.write_bytes(content)
    index = torch.load(sharded, weights_only=True)
    for change, message in (
        (dict(folder=f'../{sharded.parent.name}/{folder.name}'), 'are not beside it'),
        (dict(files={}), 'has other files'),
        (dict(files=3), 'does not say what its shards are'),
    ):
        torch.save({**index, 'shards': {**index['shards'], **change}}, sharded)
        with pytest.raises(CheckpointError, match=message):
            read_checkpoint(sharded)
    torch.save({**index, 'optimizer': dict(state={0: 'momentum'})}, sharded)
    with pytest.raises(CheckpointError, match='no state of an optimizer'):
        read_checkpoint(sharded)
    larger = dict(index['state_dict'], w=torch.empty(300, 2, device='meta'))
    torch.save({**index, 'state_dict': larger}, sharded)
    with pytest.raises(CheckpointError, match='larger than its shards'):
        read_checkpoint(sharded)
    other = dict(index['state_dict'], v=torch.empty(1, device='meta'))
    torch.save({**index, 'state_dict': other}, sharded)
    with pytest.raises(CheckpointError, match='its shards do not fit'):
        read_checkpoint(sharded)
    shard.unlink()
    with pytest.raises(CheckpointError, match='is missing'):
        read_checkpoint(sharded)


class Killed(BaseException):
    """Nothing tidies up after it, as after SIGKILL."""


@needs_shards
@pytest.mark.parametrize(
    'before, newest', [('to_disk', 1), ('atomic_checkpoint', 1), ('remove_shards', 2)]
)
def test_killed_between_two_steps_of_a_save(sharded, monkeypatch, before, newest):
    def kill(*_, **__):
        raise Killed

    content = dict(state_dict=dict(w=spread(torch.ones(100))), meta=dict(iter=2))
    with monkeypatch.context() as patch:
        patch.setattr(f'mmlinattn.checkpoints.sharded.{before}', kill)
        with pytest.raises(Killed):
            save_sharded(sharded, content)
    folders = [*sharded.parent.glob('*.shards')]
    assert len(folders) == 2
    assert read_checkpoint(sharded)['meta']['iter'] == newest
    remove_lost_shards(sharded.parent)
    (left,) = sharded.parent.glob('*.shards')
    assert left in folders and read_checkpoint(sharded)['meta']['iter'] == newest
    sharded.unlink()
    remove_lost_shards(sharded.parent)
    assert not [*sharded.parent.glob('*.shards')]


@needs_shards
@pytest.mark.parametrize('limit', [300, 1500])
def test_a_full_disk(sharded, limit):
    """For the shards or for the file: the older checkpoint stays, and nothing beside it."""
    before = sorted(sharded.parent.rglob('*'))
    content = dict(state_dict=dict(w=spread(torch.ones(100))), meta=dict(iter=2))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))
    try:
        with pytest.raises(CheckpointError, match=r'epoch_1.pth cannot be written'):
            save_sharded(sharded, content)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert sorted(sharded.parent.rglob('*')) == before
    assert read_checkpoint(sharded)['meta']['iter'] == 1


@needs_shards
def test_one_file_in_place_of_shards(sharded, tmp_path):
    consolidate(sharded, tmp_path / 'one.safetensors', weights_only=True)
    assert read_checkpoint(tmp_path / 'one.safetensors')['state_dict'].keys() == {'w', 'b'}
    consolidate(sharded, tmp_path / 'one.pth')
    assert not is_sharded(read_checkpoint(tmp_path / 'one.pth', fill=False))
    for source, target, message in (
        (sharded, tmp_path / 'one.pth', 'is there already'),
        (sharded, tmp_path / 'two.safetensors', 'must end in one of'),
        (tmp_path / 'one.pth', tmp_path / 'two.pth', 'has no shards'),
    ):
        with pytest.raises(CheckpointError, match=message):
            consolidate(source, target)
