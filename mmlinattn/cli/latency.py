"""Time a model in torch and its exported files on the same image: docs/export.md."""

import argparse
from pathlib import Path

import torch
from rich.table import Table

from ..deployment import latency, sample_image
from ..engine.config import load_config
from ..utils.command_line import errors_in_one_line, plain_console


def main(args: argparse.Namespace) -> int:
    with errors_in_one_line(args.debug):
        torch.set_num_threads(args.threads)
        cfg = load_config(args.config, args.cfg_options)
        image, _ = sample_image(cfg, args.sample)
        rows = latency(
            cfg, args.checkpoint, args.files, args.shape, image, args.seconds, args.rounds
        )
        height, width = args.shape
        table = Table(title=f'{Path(args.config).stem}, {height} x {width}, {args.threads} threads')
        for name in ('', 'ms, median', 'ms, 90 %', 'difference from torch'):
            table.add_column(name, justify='right' if name else 'left')
        for row in rows:
            cells = (f'{row.median:.1f}', f'{row.p90:.1f}', f'{row.difference:.0e}')
            table.add_row(row.name, *cells)
        plain_console().print(table)
    return 0
