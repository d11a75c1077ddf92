"""Train a detector, segmentor or classifier from a config."""

import argparse
from typing import List, Optional

from ..checkpoints import CheckpointError
from ..engine import config
from ..engine.distributed import launch
from ..engine.distributed.fsdp_runner import runner_class
from ..engine.hooks.divergence_hook import TrainingDiverged
from ..engine.hooks.preemption_hook import Preempted
from ..engine.preflight import data as data_checks
from ..engine.preflight.model import check_channels
from ..engine.preflight.weights import check_weights
from ..engine.runner.runner import PluginFeatures
from ..engine.runner.work_dir_lock import claim_folder
from ..utils import unlock_folders
from ..utils.command_line import Parser, errors_in_one_line, parse_run

# Errors during training that are reported without a traceback.
KNOWN = (
    CheckpointError,
    data_checks.DataError,
    launch.FailedElsewhere,
    OSError,
    TrainingDiverged,
)


def parse_args(argv: Optional[List[str]] = None) -> argparse.Namespace:
    parser = Parser(cfg_options=True, description=__doc__)
    parser.add_argument('config', help='config file, or the name of one of this package')
    parser.add_argument(
        '--resume',
        nargs='?',
        const='auto',
        help='checkpoint to resume from; without a value, the newest in the work directory',
    )
    parser.add_argument('--amp', action='store_true', help='mixed precision')
    parser.add_argument(
        '--auto-scale-lr',
        action='store_true',
        help="scale the learning rate to the batch size, from the config's auto_scale_lr",
    )
    parser.add_argument(
        '--hang-timeout',
        type=float,
        metavar='SECONDS',
        help='end with an error, and the stack of each process, when nothing happens for so long; '
        'several processes: 1800',
    )
    return parse_run(parser, argv)


def prepare(args: argparse.Namespace) -> PluginFeatures:
    """Check config, data and weights, and return the runner of the training."""
    cfg = config.load_config(args.config, args.cfg_options)
    config.set_work_dir(cfg, args.config, args.work_dir)
    runner_of = runner_class(cfg)
    check_channels(cfg)
    launch.check_restarts(args.resume)
    if args.launcher != 'none' or args.hang_timeout is not None:
        config.set_hang_timeout(cfg, args.hang_timeout)
    launch.set_launcher(cfg, args.launcher)
    options = ('resume', 'amp', 'auto_scale_lr')
    launch.check_same(cfg, **{f'--{name}': getattr(args, name) for name in options})
    claim_folder(cfg.work_dir, restarted=args.resume == 'auto')
    config.set_resume(cfg, args.resume)
    config.use_amp(cfg, args.amp)
    config.set_checkpoint_hooks(cfg)
    config.set_divergence_check(cfg)
    if args.auto_scale_lr:
        config.scale_lr(cfg)
    data_checks.check_data(cfg, 'train_dataloader', 'val_dataloader', 'val_evaluator')
    runner = runner_of.from_cfg(cfg)
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


def main(argv: Optional[List[str]] = None) -> int:
    try:
        train(parse_args(argv))
    finally:
        unlock_folders()
    return 0
