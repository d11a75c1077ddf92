"""Additions of a training to the config of the user: options of the command and hooks."""

from typing import List, Optional, Type

from mmengine.config import Config
from mmengine.device import get_device
from mmengine.dist import is_main_process
from mmengine.hooks import CheckpointHook, Hook
from mmengine.logging import print_log
from mmengine.registry import HOOKS

from .config import is_subtype
from .distributed.launch import broadcast_from_first
from .hooks.checkpoint_hook import AtomicCheckpointHook, newest_checkpoint
from .hooks.divergence_hook import DivergenceHook
from .hooks.preemption_hook import PreemptionHook
from .hooks.report_hook import ReportHook
from .hooks.watchdog_hook import TIMEOUT_S, WatchdogHook

# Collectives time out this many seconds after WatchdogHook.
WAIT_LONGER_S = 60


def set_up_training(
    cfg: Config, *, resume: Optional[str], amp: bool, auto_scale_lr: bool = False
) -> None:
    """Change a config in place, between its checks and the runner.

    Args:
        cfg: a checked config with a work directory.
        resume, amp, auto_scale_lr: see :func:`set_resume`, :func:`use_amp` and :func:`scale_lr`.

    Raises:
        CheckpointError: nothing intact to resume from.
        ValueError: ``amp`` or ``auto_scale_lr`` does not fit the config.
    """
    set_resume(cfg, resume)
    use_amp(cfg, amp)
    set_checkpoint_hooks(cfg)
    _add_hook(cfg, DivergenceHook)
    set_report(cfg)
    if auto_scale_lr:
        scale_lr(cfg)


def use_amp(cfg: Config, requested: bool) -> None:
    """Turn mixed precision on (``--amp``) and choose a wrapper that the device supports."""
    kind = cfg.optim_wrapper.get('type', 'OptimWrapper')
    if requested and kind == 'OptimWrapper':
        kind = 'AmpOptimWrapper'
        cfg.optim_wrapper.setdefault('loss_scale', 'dynamic')
    if requested and kind != 'AmpOptimWrapper':
        raise ValueError(f'--amp: optim_wrapper.type is {kind!r}, which has no mixed precision')
    if kind == 'AmpOptimWrapper' and get_device() == 'cpu':
        kind = 'CPUAmpOptimWrapper'
        cfg.optim_wrapper.pop('use_fsdp', None)
        dtype = cfg.optim_wrapper.get('dtype') or 'bfloat16'
        cfg.optim_wrapper.dtype = dtype
        slow = ", slowly: dtype='bfloat16' is faster" if dtype == 'float16' else ''
        print_log(f'No GPU: mixed precision runs as {dtype} autocast on the CPU{slow}.', 'current')
    cfg.optim_wrapper.type = kind


def set_resume(cfg: Config, resume: Optional[str]) -> None:
    """Set the checkpoint to resume from (``--resume``).

    Args:
        cfg: the config, changed in place.
        resume: a checkpoint; None for a new training; ``'auto'`` for the newest intact checkpoint
            of the work directory, if any. With several processes only the first one searches.

    Raises:
        CheckpointError: the work directory has checkpoints, but no intact one.
    """
    if resume is None:
        return
    found = resume
    if resume == 'auto':
        found = broadcast_from_first(lambda: newest_checkpoint(cfg.work_dir))
    if found is None:
        if is_main_process():
            print_log(f'--resume: no checkpoint in {cfg.work_dir!r} yet: a new training', 'current')
        return
    cfg.resume, cfg.load_from = True, found


def set_watchdog_timeout(cfg: Config, seconds: Optional[float]) -> None:
    """Add a WatchdogHook to a training on several processes (``--watchdog-timeout``).

    Without ``seconds`` the timeout is the config's, else the hook's default. Collectives time out
    later unless ``env_cfg.dist_cfg.timeout`` is set, so that the hook can first report the stack
    of each process.
    """
    hooks: List[dict] = list(cfg.get('custom_hooks') or [])
    watching = [hook for hook in hooks if is_subtype(hook, WatchdogHook, HOOKS)]
    if not watching:
        hooks.append(dict(type='WatchdogHook'))
        watching = hooks[-1:]
    if seconds is not None:
        watching[0]['timeout'] = seconds
    cfg.custom_hooks = hooks
    limit = watching[0].get('timeout', TIMEOUT_S) + WAIT_LONGER_S
    env_cfg = dict(cfg.get('env_cfg') or {})
    env_cfg['dist_cfg'] = {'timeout': limit, **(env_cfg.get('dist_cfg') or {})}
    cfg.env_cfg = env_cfg


def set_checkpoint_hooks(cfg: Config) -> None:
    """Replace MMEngine's CheckpointHook by AtomicCheckpointHook and add a PreemptionHook.

    A kill then loses no checkpoint, and SIGTERM and SIGINT save one. A checkpoint hook of another
    class is kept, with a message.
    """
    hooks = cfg.setdefault('default_hooks', {})
    hook = hooks.setdefault('checkpoint', dict(type='CheckpointHook', interval=1))
    if hook is not None and is_subtype(hook, CheckpointHook, HOOKS):
        hook['type'] = 'AtomicCheckpointHook'
    if hook is None or not is_subtype(hook, AtomicCheckpointHook, HOOKS):
        print_log(f'default_hooks.checkpoint is {hook}: a kill may lose checkpoints', 'current')
        return
    _add_hook(cfg, PreemptionHook)


def _add_hook(cfg: Config, kind: Type[Hook]) -> None:
    """Add a hook without options to ``custom_hooks``, unless the config has one of its class."""
    custom = list(cfg.get('custom_hooks') or [])
    if not any(is_subtype(hook, kind, HOOKS) for hook in custom):
        cfg.custom_hooks = [*custom, dict(type=kind.__name__)]


def set_report(cfg: Config) -> None:
    """Add a ReportHook as ``default_hooks.report``, unless the config names one or None."""
    cfg.setdefault('default_hooks', {}).setdefault('report', dict(type=ReportHook.__name__))


def scale_lr(cfg: Config) -> None:
    """Enable ``--auto-scale-lr``; raise ValueError if the config has no base batch size."""
    if 'base_batch_size' not in (cfg.get('auto_scale_lr') or {}):
        raise ValueError(
            '--auto-scale-lr: the config has no auto_scale_lr.base_batch_size: add '
            'auto_scale_lr = dict(base_batch_size=N), N images a step that its learning rate is '
            'for, or set the learning rate yourself'
        )
    cfg.auto_scale_lr.enable = True
