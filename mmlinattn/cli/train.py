"""Train a detector, segmentor or classifier from a config."""

import argparse
from functools import partial
from pathlib import Path
from typing import Callable

from mmengine.dist import is_main_process
from mmengine.logging import print_log

from .. import evaluation  # noqa: F401  registers the metrics that configs name
from ..checkpoints import CheckpointError
from ..engine import config, launch
from ..engine.hooks.preemption_hook import Preempted
from ..engine.preflight.data import DataError
from ..engine.preflight.run import check_run, check_sections
from ..engine.preflight.weights import check_weights
from ..engine.runner.runner import PluginRunner
from ..engine.training_setup import set_up_training
from ..utils import check_writable
from ..utils.command_line import errors_in_one_line
from ..utils.errors import InputError
from ..utils.messages import log_warning

# Errors during training that are reported without a traceback.
KNOWN = (CheckpointError, DataError, InputError, OSError)


def prepare(args: argparse.Namespace) -> PluginRunner:
    """Check config, data and weights, and return the runner of the training."""
    cfg = config.load_config(args.config, args.cfg_options)
    check_sections(cfg, 'train')
    config.set_work_dir(cfg, args.config, args.work_dir)
    problems = check_run(cfg, 'train', 'val')
    check_writable(Path(cfg.work_dir) / 'config.py')
    launch.set_launcher(cfg, args.launcher)
    set_up_training(cfg, resume=args.resume, amp=args.amp, auto_scale_lr=args.auto_scale_lr)
    runner = PluginRunner.from_cfg(cfg)
    for problem in problems if is_main_process() else ():
        log_warning(problem)
    check_weights(runner, cfg)
    runner.prepare_training()
    return runner


def run(work: Callable[[], object], debug: bool, log_dir: str, advice: str = '') -> int:
    """Run the work of a command in all processes; if a signal ends it, log the advice."""
    with errors_in_one_line(debug, KNOWN, log_dir):
        try:
            work()
        except Preempted:
            if advice and is_main_process():
                print_log(advice, 'current')
            launch.leave_process_group()
            raise
    launch.leave_process_group()
    return 0


def main(args: argparse.Namespace) -> Callable[[], int]:
    """Check everything, and return the function that trains."""
    runner = prepare(args)
    return partial(run, runner.train, args.debug, runner.log_dir)
