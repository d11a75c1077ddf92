"""The learning rates and hooks of the phases."""

from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import PARAM_SCHEDULERS
from torch import nn

from mmlinattn.linearize import Options
from mmlinattn.linearize.images import RandomCropFlip
from mmlinattn.linearize.phases import RESUME_HOOKS, finetune_config, phase_config

CONFIG = Path(__file__).parents[2] / 'configs/smca/smca_nano_bccd.py'


@pytest.mark.parametrize('iters', [1, 19, 20, 39, 40, 200])
def test_learning_rate_rises_to_its_value_and_falls(iters):
    cfg = Config.fromfile(CONFIG)
    options = Options('images', 'out', iters_a=iters, lr_a=0.5)
    phase = phase_config(cfg, cfg, 'a', options, 'teacher.pth', 'start.pth', 'images.json')
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), phase.optim_wrapper.optimizer.lr)
    build = PARAM_SCHEDULERS.build
    schedulers = [
        build(each, default_args=dict(optimizer=optimizer)) for each in phase.param_scheduler
    ]
    rates = []
    for _ in range(iters):
        rates.append(optimizer.param_groups[0]['lr'])
        optimizer.step()
        for scheduler in schedulers:
            scheduler.step()
    top = rates.index(max(rates))
    assert rates[top] == pytest.approx(0.5, rel=0.02) and top <= iters / 20
    assert rates[:top] == sorted(rates[:top]) and rates[top:] == sorted(rates[top:], reverse=True)
    assert iters < 40 or (rates[0] < 0.01 and rates[-1] < 0.01)


@pytest.mark.parametrize('own', [None, ['mmdet.CheckInvalidLossHook', 'mmlinattn.PreemptionHook']])
@pytest.mark.parametrize(
    'saves, kind',
    [
        (None, 'AtomicCheckpointHook'),
        (dict(type='CheckpointHook', interval=7), 'AtomicCheckpointHook'),
        (dict(type='mmengine.CheckpointHook', backend_args=None), 'AtomicCheckpointHook'),
        (dict(type='CheckpointHook', backend_args=dict(backend='petrel')), 'CheckpointHook'),
        (dict(type='CheckpointHook', file_client_args=dict(backend='disk')), 'CheckpointHook'),
        (dict(type='OwnCheckpointHook'), 'OwnCheckpointHook'),
    ],
)
def test_fine_tuning_resumes_exactly(own, saves, kind):
    student = Config(dict(custom_hooks=own and [dict(type=name) for name in own]))
    if saves:
        student.default_hooks = dict(checkpoint=saves, logger=dict(interval=3))
    cfg = finetune_config(student, 'b.pth', 5)
    assert cfg.randomness.seed == 5
    found = [hook['type'] for hook in cfg.custom_hooks]
    assert found == ([*own, 'ExactResumeHook'] if own else [*RESUME_HOOKS])
    assert cfg.default_hooks.checkpoint == dict(saves or dict(interval=1), type=kind)
    assert not saves or cfg.default_hooks.logger.interval == 3
    student.randomness = dict(seed=0, deterministic=True)
    assert finetune_config(student, 'b.pth', 5).randomness == student.randomness


@pytest.mark.parametrize('crop_size', [None, (4, 1)])
def test_a_flipped_image_of_one_column(monkeypatch, crop_size):
    """NumPy keeps its negative stride in ``ascontiguousarray``, and torch takes none."""
    monkeypatch.setattr(np.random, 'rand', lambda: 0.0)
    image = np.arange(12, dtype=np.uint8).reshape(4, 1, 3)
    flipped = RandomCropFlip(crop_size).transform(dict(img=image))['img']
    assert torch.from_numpy(flipped).tolist() == image.tolist()
