"""Time a model in torch and its exported files on the same image: docs/export.md."""

import argparse
from pathlib import Path
from typing import List, Optional

import torch
from rich.table import Table

from ..deployment import latency, sample_image
from ..engine.config import load_config
from ..utils.command_line import Parser, errors_in_one_line, plain_console


def parse_args(argv: Optional[List[str]] = None) -> argparse.Namespace:
    parser = Parser(cfg_options=True, description=__doc__)
    add = parser.add_argument
    add('config', help='config file, or the name of one of this package')
    add('checkpoint', help='checkpoint file')
    add('files', nargs='*', help='exported files: .onnx, .xml, .pt2')
    add('--shape', nargs=2, type=int, required=True, metavar=('H', 'W'))
    add('--threads', type=int, default=1, help='of the processor')
    add('--seconds', type=float, default=5.0, help='for each')
    add('--rounds', type=int, default=1, help='of all; the least disturbed one of each counts')
    add('--sample', help='an image; the first of the test set by default')
    args = parser.parse_args(argv)
    for name in ('threads', 'seconds', 'rounds'):
        if getattr(args, name) <= 0:
            parser.error(f'--{name} must be positive, got {getattr(args, name)}')
    if min(args.shape) < 1:
        parser.error(f'--shape must be positive, got {args.shape[0]} {args.shape[1]}')
    return args


def main(argv: Optional[List[str]] = None) -> int:
    args = parse_args(argv)
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
