"""Turn a trained softmax model into one of linear cost, without labels: docs/linearize.md."""

import argparse
from dataclasses import fields
from functools import partial
from typing import Callable

from ..engine import config, launch
from ..linearize import Linearizer, Options
from .train import run


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


def main(args: argparse.Namespace) -> Callable[[], int]:
    """Check everything, and return the function that trains."""
    advice = f'The same command with --resume continues in {args.out}'
    return partial(run, prepare(args).run, args.debug, args.out, advice)
