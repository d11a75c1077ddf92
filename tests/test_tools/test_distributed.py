"""Two processes on the CPU do what one process does with the doubled batch."""

import os
import subprocess
import sys

import pytest
import torch
from mmengine.config import Config

from mmlinattn.engine import launch
from mmlinattn.engine.launch import set_launcher
from mmlinattn.utils.messages import MESSAGES

from ..programs import Program, free_port
from .conftest import CONFIGS

pytestmark = pytest.mark.slow

# Batch norm statistics and the sum of class weights are of one process, so norms are in eval mode
# and classes have no weights; SGD, since AdamW's first steps turn rounding into signs.
CONFIG = """
_base_ = {base!r}
custom_imports = dict(imports=['mmlinattn', 'record_hook'])
custom_hooks = [dict(type='ExactResumeHook'), dict(type='RecordLossHook')]
model = dict(
    backbone=dict(norm_eval=True, norm_cfg=dict(type='SyncBN')),
    decode_head=dict(norm_cfg=None, dropout_ratio=0.0, loss_decode=dict(class_weight=None)),
)
optim_wrapper = dict(_delete_=True, type='OptimWrapper', optimizer=dict(type='SGD', lr=0.01))
param_scheduler = []
"""


def train(root, config, work_dir, processes: int, options: list):
    arguments = [config, '--work-dir', work_dir, '--cfg-options', *options]
    script, recorded = root / 'tools/train.py', str(work_dir) + '.loss'
    paths = [root, root / 'tests/test_tools']
    if processes == 1:
        output = work_dir.with_suffix('.out')
        program = Program(script, arguments, output, paths, RECORD_LOSS=recorded)
        assert program.end() == 0, program.text()[-3000:]
    else:  # as a user starts them
        command = [sys.executable, '-m', 'torch.distributed.run', '--nproc_per_node', '2']
        command += ['--master_addr', '127.0.0.1', '--master_port', free_port()]
        command += [str(script), '--launcher', 'pytorch', *map(str, arguments)]
        path = os.pathsep.join(map(str, paths))
        env = dict(os.environ, OMP_NUM_THREADS='1', PYTHONPATH=path, RECORD_LOSS=recorded)
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
        # The first process alone prints.
        assert done.stdout.count('Checkpoints will be') == 1
        assert not [text for text in MESSAGES if text in done.stdout + done.stderr]
    losses = []
    for rank in range(processes):
        lines = work_dir.with_name(f'{work_dir.name}.loss.{rank}').read_text().split()
        losses.append([float(line) for line in lines])
    checkpoint = (work_dir / 'last_checkpoint').read_text()
    log = next(work_dir.glob('*/*.log')).read_text()
    return losses, torch.load(checkpoint, weights_only=False)['state_dict'], log


def test_two_processes_equal_one_with_the_doubled_batch(root, options, tmp_path):
    config = tmp_path / 'config.py'
    config.write_text(CONFIG.format(base=str(root / CONFIGS['seg'])))
    one, weights, _ = train(root, config, tmp_path / 'one', 1, options('seg', 3, batch=4))
    two, weights_two, log = train(root, config, tmp_path / 'two', 2, options('seg', 3, batch=2))
    assert 'SyncBN becomes BN: the CPU cannot synchronise' in log
    for whole, first, second in zip(one[0], *two):
        assert first != second
        assert abs(whole - (first + second) / 2) < 1e-5 * whole
    # Convolutions round a batch of 2 in channels_last otherwise than one of 4: up to 1.4e-5.
    for name, value in weights.items():
        torch.testing.assert_close(weights_two[name], value, rtol=1e-4, atol=5e-5, msg=name)


def test_processes_of_nccl_wait_for_the_first_one_elsewhere(monkeypatch):
    """NCCL ends them after 10 minutes, in which not every image is read."""
    made = []
    monkeypatch.setattr(launch, 'is_distributed', lambda: True)
    monkeypatch.setattr(torch.distributed, 'get_backend', lambda: 'nccl')
    monkeypatch.setattr(torch.distributed, 'new_group', lambda **given: made.append(given) or 'own')
    groups = []
    monkeypatch.setattr(launch, 'broadcast_object_list', lambda x, group: groups.append(group))
    assert launch.broadcast_from_first(lambda: 3) == 3 and groups == ['own']
    assert made[0]['backend'] == 'gloo' and made[0]['timeout'].days == 1


def test_a_process_of_torchrun_that_would_train_alone(monkeypatch):
    monkeypatch.setenv('TORCHELASTIC_RUN_ID', 'x')
    monkeypatch.setenv('WORLD_SIZE', '2')
    with pytest.raises(ValueError, match='none in one of 2 processes of torchrun'):
        set_launcher(Config(), 'none')


def test_leaving_the_group_never_hangs(root, tmp_path):
    """Without a wait for gloo's threads one of about ten rounds hung."""
    script = root / 'tests/test_tools/leave_in_turns.py'
    programs = [
        Program(script, [tmp_path / 'round', rank], tmp_path / f'{rank}.out', [root])
        for rank in range(2)
    ]
    for program in programs:
        assert program.end() == 0, program.text()[-3000:]
        assert program.text().endswith('through\n')
