"""Train a detector, segmentor or classifier from a config."""

import argparse

from mmengine.dist import is_main_process

from .. import evaluation  # noqa: F401  registers the metrics that configs name
from ..checkpoints import CheckpointError
from ..engine import config
from ..engine.distributed import launch
from ..engine.distributed.fsdp_runner import runner_class
from ..engine.hooks.divergence_hook import TrainingDiverged
from ..engine.hooks.preemption_hook import Preempted
from ..engine.preflight.data import DataError
from ..engine.preflight.run import check_run
from ..engine.preflight.weights import check_weights
from ..engine.runner.console import silence_other_processes
from ..engine.runner.runner import PluginFeatures
from ..engine.runner.work_dir_lock import lock_work_dir
from ..engine.training_setup import set_up_training, set_watchdog_timeout
from ..utils import unlock_folders
from ..utils.command_line import errors_in_one_line
from ..utils.errors import InputError
from ..utils.messages import log_warning

# Errors during training that are reported without a traceback.
KNOWN = (CheckpointError, DataError, InputError, launch.PeerFailed, OSError, TrainingDiverged)


def prepare(args: argparse.Namespace) -> PluginFeatures:
    """Check config, data and weights, and return the runner of the training."""
    cfg = config.load_config(args.config, args.cfg_options)
    config.set_work_dir(cfg, args.config, args.work_dir)
    runner_of = runner_class(cfg)
    problems = check_run(cfg, 'train', 'val')
    launch.check_restarts(args.resume)
    if args.launcher != 'none' or args.watchdog_timeout is not None:
        set_watchdog_timeout(cfg, args.watchdog_timeout)
    launch.set_launcher(cfg, args.launcher)
    silence_other_processes()
    options = ('resume', 'amp', 'auto_scale_lr')
    launch.check_same(cfg, **{f'--{name}': getattr(args, name) for name in options})
    lock_work_dir(cfg.work_dir, restarted=args.resume == 'auto')
    set_up_training(cfg, resume=args.resume, amp=args.amp, auto_scale_lr=args.auto_scale_lr)
    runner = runner_of.from_cfg(cfg)
    for problem in problems if is_main_process() else ():
        log_warning(problem)
    check_weights(runner, cfg)
    runner.prepare_training()
    return runner


def train(args: argparse.Namespace) -> None:
    """Check the inputs, then train; errors end the process with one line."""
    with errors_in_one_line(args.debug):
        runner = prepare(args)
    with errors_in_one_line(args.debug, KNOWN, runner.log_dir):
        try:
            runner.train()
        except Preempted:
            launch.leave_process_group()
            raise
    launch.leave_process_group()


def main(args: argparse.Namespace) -> int:
    try:
        train(args)
    finally:
        unlock_folders()
    return 0
