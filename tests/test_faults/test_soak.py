"""Hours in, a training and a server take what they took at first: memory, files, caches."""

import gc
import os
import random
from pathlib import Path
from typing import List, Tuple

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.hooks import Hook

from mmlinattn.datasets import shapes
from mmlinattn.engine.runner.runner import PluginRunner
from mmlinattn.models.backbones import RAVLT
from mmlinattn.ops.common import rotary
from tests.families import shrunk
from tests.sizes import LONG, size

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not Path('/proc/self/statm').exists(), reason='reads /proc of Linux'),
]
ITERATIONS, PREDICTIONS = size(24, 2000), size(40, 5000)
MOST_MB = 1.0  # a thousand iterations


def family(pid: int) -> List[int]:
    """A process and its workers."""
    found = [pid]
    for child in Path(f'/proc/{pid}/task/{pid}/children').read_text().split():
        found += family(int(child))
    return found


def taken() -> Tuple[List[float], List[int]]:
    """Resident memory in MB, and open files, of this process and each of its workers."""
    memory, files = [], []
    for pid in family(os.getpid()):
        pages = int(Path(f'/proc/{pid}/statm').read_text().split()[1])
        memory.append(pages * os.sysconf('SC_PAGE_SIZE') / 2**20)
        files.append(len(os.listdir(f'/proc/{pid}/fd')))
    return memory, files


class Watch:
    """Takes notes, and says what has grown."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.memory: List[List[float]] = []
        self.files: List[List[int]] = []

    def look(self, i: int) -> None:
        if i % self.every == 0:
            memory, files = taken()
            self.memory.append(memory)
            self.files.append(files)

    def check(self, name: str) -> None:
        # What is made when first needed is there after half of it.
        start = len(self.files) // 2
        assert len({len(files) for files in self.files[start:]}) == 1, 'workers came or went'
        assert self.files[start] == self.files[-1], f'open files: {self.files[start:]}'
        slopes = []
        for memory in np.array(self.memory[start:]).T:
            slopes.append(np.polyfit(np.arange(len(memory)) * self.every / 1000, memory, 1)[0])
        text = ', '.join(f'{slope:+.2f}' for slope in slopes)
        print(f'{name}: MB a thousand, process and workers: {text}; at the end {self.memory[-1]}')
        if LONG:  # a few iterations say nothing
            assert max(slopes) < MOST_MB, text


class WatchHook(Hook):
    def __init__(self, watch: Watch) -> None:
        self.watch = watch

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
        self.watch.look(runner.iter)


def test_training(tmp_path):
    root = shapes.generate(tmp_path / 'shapes', num_train=8, num_val=2, image_size=64, workers=1)
    cfg = shrunk('segformer-rala', root)
    cfg.train_dataloader.update(num_workers=2, persistent_workers=True)
    keep = ('model', 'train_dataloader', 'default_scope', 'custom_imports')
    cfg = Config({k: cfg[k] for k in keep if k in cfg})
    cfg.update(
        work_dir=str(tmp_path / 'work'),
        train_cfg=dict(by_epoch=False, max_iters=ITERATIONS),
        optim_wrapper=dict(type='OptimWrapper', optimizer=dict(type='AdamW', lr=1e-4)),
        default_hooks=dict(
            checkpoint=dict(
                type='AtomicCheckpointHook', by_epoch=False, interval=size(8, 100), max_keep_ckpts=2
            ),
            logger=dict(type='LoggerHook', interval=20),
        ),
        custom_hooks=[dict(type='ExactResumeHook')],
        experiment_name='soak',
    )
    runner = PluginRunner.from_cfg(cfg)
    watch = Watch(every=size(2, 20))
    runner.register_hook(WatchHook(watch))
    gc.collect()
    runner.train()
    watch.check('training')
    del runner  # and its workers
    gc.collect()


def test_predictions_of_all_sizes():
    torch.manual_seed(0)
    model = RAVLT(arch=dict(embed_dims=(16, 16, 32, 32), depths=1, num_heads=1)).eval()
    dice, watch = random.Random(0), Watch(every=size(5, 50))
    for i in range(PREDICTIONS):
        sides = [32 * dice.randint(1, 6) for _ in range(2)]
        with torch.inference_mode():
            model(torch.rand(1, 3, *sides))
        watch.look(i)
    watch.check('predictions')
    kept = sum(table.nbytes for table in rotary._TABLES.values())
    assert len(rotary._TABLES) <= rotary._MOST_TABLES or kept <= rotary._MOST_BYTES
