"""Training of one job with MMEngine's runner."""

import hashlib
import json
import logging
import math
import platform
import time
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.logging import MessageHub, MMLogger
from mmengine.visualization import Visualizer

from benchmarks.machine import commit, machine, openmmlab
from mmlinattn.checkpoints import save_checkpoint
from mmlinattn.engine.runner.runner import PluginRunner
from mmlinattn.utils import whole_file

from . import data
from .plan import Job, Sizes, config


def settings(cfg: Config, data_root: Path) -> str:
    """Return a hash of everything that the result depends on, except the code of this package."""
    found = dict(config=cfg.to_dict(), data=data.description(data_root), torch=torch.__version__)
    for split in ('train', 'val', 'test'):  # the path of the data does not matter
        found['config'][f'{split}_dataloader']['dataset'].pop('data_root')
    found['config'].pop('work_dir', None)
    text = json.dumps(found, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def facts() -> dict:
    """Return machine, versions and commit, which are needed to judge and to repeat the result."""
    versions = [f'Python {platform.python_version()}', f'torch {torch.__version__}']
    versions += [f'{name} {openmmlab(name)}' for name in ('mmengine', 'mmcv', 'mmpretrain')]
    return dict(machine=machine(torch.device('cpu')), versions=', '.join(versions), commit=commit())


def record_path(folder: Path, job: Job) -> Path:
    return folder / 'trainings' / f'{job.name}.json'


def train(job: Job, folder: Path, data_root: Path, sizes: Sizes) -> dict:
    """Train and score a job, and save its record (with seed 0 also the weights) below ``folder``.

    ``seconds`` is processor time. The record of a failed training has ``error`` instead of scores.
    """
    start = time.process_time()
    cfg = config(job, data_root, sizes)
    record = dict(job.fields(), settings=settings(cfg, data_root), **facts())
    cfg.work_dir = str(folder / 'logs' / job.name)
    _forget()
    try:
        runner = PluginRunner.from_cfg(cfg)
        model = runner.train()
        scalars = runner.message_hub.get_scalar
        loss = float(scalars('train/loss').mean(len(runner.train_dataloader)))
        if not math.isfinite(loss):
            raise FloatingPointError(f'the loss of the last epoch is {loss}')
        record.update(
            accuracy=scalars('val/accuracy/top1').current(),
            loss=loss,
            epochs=runner.max_epochs,
            iterations=runner.iter,
            images=len(runner.train_dataloader.dataset),
            images_val=len(runner.val_dataloader.dataset),
            params=sum(parameter.numel() for parameter in model.parameters()),
        )
        if job.seed == 0:
            attn_cfg = dict(cfg.model.backbone.attn_cfg)  # read by visualize_key_weights.py
            meta = dict(job.fields(), attn_cfg=attn_cfg)
            save_checkpoint(weights_path(folder, job), model.state_dict(), meta)
    except Exception as error:  # the other jobs continue; the page lists failures
        logging.getLogger(__name__).exception(job.name)
        record['error'] = f'{type(error).__name__}: {error}'
    record['seconds'] = round(time.process_time() - start, 2)
    path = record_path(folder, job)
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as temporary:
        temporary.write_text(json.dumps(record, indent=1) + '\n')
    return record


def weights_path(folder: Path, job: Job) -> Path:
    return folder / 'weights' / f'{job.name}.pth'


def read(folder: Path, job: Job, wanted: str) -> dict:
    """Return the record of a job, or an empty dict if there is none.

    If its settings differ from ``wanted``, it has ``stale`` and no scores.
    """
    path = record_path(folder, job)
    if not path.is_file():
        return {}
    record = json.loads(path.read_text())
    return record if record['settings'] == wanted else dict(job.fields(), stale=True)


def _forget() -> None:
    """Clear the global instances that MMEngine keeps by the name of the experiment."""
    for logger in MMLogger._instance_dict.values():
        for handler in logger.handlers:
            handler.close()
    for manager in (MessageHub, MMLogger, Visualizer, *Visualizer.__subclasses__()):
        manager._instance_dict.clear()
