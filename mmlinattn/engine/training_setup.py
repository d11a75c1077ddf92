"""Additions of a training to the config of the user: options of the command and the report."""

import os
from typing import Optional

from mmengine.config import Config
from mmengine.device import get_device
from mmengine.dist import is_main_process
from mmengine.logging import print_log

from ..utils import type_name
from .hooks.checkpoint_hook import newest_checkpoint
from .hooks.report_hook import ReportHook
from .launch import broadcast_from_first


def set_up_training(
    cfg: Config, *, resume: Optional[str], amp: bool, auto_scale_lr: bool = False
) -> None:
    """Change a checked config with a work directory in place, before the runner is built.

    Raises:
        CheckpointError: nothing intact to resume from.
        ValueError: an option does not fit the config, or it names another runner than MMEngine's.
    """
    if cfg.get('runner_type', 'Runner') != 'Runner' or cfg.get('strategy') is not None:
        raise ValueError(
            f'runner_type is {cfg.get("runner_type")!r} and strategy {cfg.get("strategy")}: '
            "mmlinattn train uses MMEngine's Runner; train with tools/train.py of your framework"
        )
    if (cfg.get('randomness') or {}).get('deterministic'):
        os.environ.setdefault('CUBLAS_WORKSPACE_CONFIG', ':4096:8')  # torch before 2.10 needs it
    set_resume(cfg, resume)
    use_amp(cfg, amp)
    # Unless the config names a report of its own, or None.
    cfg.setdefault('default_hooks', {}).setdefault('report', dict(type=ReportHook.__name__))
    if not auto_scale_lr:
        return
    if 'base_batch_size' not in (cfg.get('auto_scale_lr') or {}):
        raise ValueError(
            '--auto-scale-lr: the config has no auto_scale_lr.base_batch_size: add '
            'auto_scale_lr = dict(base_batch_size=N), N images a step that its learning rate is '
            'for, or set the learning rate yourself'
        )
    cfg.auto_scale_lr.enable = True


def use_amp(cfg: Config, requested: bool) -> None:
    """Turn mixed precision on (``--amp``) and choose a wrapper that the device supports."""
    given = kind = type_name(cfg.optim_wrapper, 'OptimWrapper')
    if requested and kind == 'OptimWrapper':
        kind = 'AmpOptimWrapper'
        cfg.optim_wrapper.setdefault('loss_scale', 'dynamic')
    if requested and kind != 'AmpOptimWrapper':
        raise ValueError(f'--amp: optim_wrapper.type is {kind!r}, which has no mixed precision')
    if kind == 'AmpOptimWrapper' and get_device() == 'cpu':
        kind = 'CPUAmpOptimWrapper'
        dtype = cfg.optim_wrapper.get('dtype') or 'bfloat16'
        cfg.optim_wrapper.dtype = dtype
        slow = ", slowly: dtype='bfloat16' is faster" if dtype == 'float16' else ''
        print_log(f'No GPU: mixed precision runs as {dtype} autocast on the CPU{slow}.', 'current')
    if kind != given:
        cfg.optim_wrapper.type = kind


def set_resume(cfg: Config, resume: Optional[str]) -> None:
    """Set the checkpoint to resume from: ``'auto'`` is the newest one, None a new training."""
    if resume == 'auto':
        resume = broadcast_from_first(lambda: newest_checkpoint(cfg.work_dir))
        if resume is None and is_main_process():
            print_log(f'--resume: no checkpoint in {cfg.work_dir!r} yet: a new training', 'current')
    if resume is not None:
        cfg.resume, cfg.load_from = True, resume
