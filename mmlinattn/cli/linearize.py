"""Turn a trained softmax model into one of linear cost, without labels: docs/linearize.md."""

import argparse
from dataclasses import fields
from functools import partial
from typing import Callable

from mmengine.dist import is_main_process
from mmengine.logging import print_log

from ..engine import config
from ..engine.distributed import launch
from ..engine.hooks.preemption_hook import Preempted
from ..linearize import Linearizer, Options
from ..utils.command_line import errors_in_one_line
from .train import KNOWN


def prepare(args: argparse.Namespace) -> Linearizer:
    """Check config, weights, images and options, and return the distillation."""
    cfg = config.load_config(args.config, args.cfg_options)
    launch.set_launcher(cfg, args.launcher)
    given = dict(
        vars(args),
        attn=dict(args.attn_options or {}, type=args.attn),
        crop_size=args.crop_size and tuple(args.crop_size),
        score=not args.no_score,
    )
    options = Options(**{field.name: given[field.name] for field in fields(Options)})
    return Linearizer(cfg, args.checkpoint, options)


def run(args: argparse.Namespace, work: Linearizer) -> int:
    with errors_in_one_line(args.debug, KNOWN, args.out):
        try:
            work.run()
        except Preempted:
            if is_main_process():
                print_log(f'The same command with --resume continues in {args.out}', 'current')
            launch.leave_process_group()
            raise
    launch.leave_process_group()
    return 0


def main(args: argparse.Namespace) -> Callable[[], int]:
    """Check everything, and return the function that trains."""
    return partial(run, args, prepare(args))
