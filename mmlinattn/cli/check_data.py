"""Read every image and annotation of a config's data sets, and report errors in them.

Exit code 0: nothing found, 1: findings, 2: the config or its folders cannot be used.
"""

import argparse
import json
import os
from pathlib import Path
from typing import List, Optional

from rich.console import Console
from rich.table import Table

from ..engine.config import load_config
from ..engine.preflight.dataset_audit import SPLITS, Report, inspect_data
from ..utils import check_writable, whole_file
from ..utils.command_line import Parser, errors_in_one_line, plain_console, progress_bars


def parse_args(argv: Optional[List[str]] = None) -> argparse.Namespace:
    parser = Parser(cfg_options=True, description=__doc__)
    parser.add_argument('config', help='config file, or the name of one of this package')
    parser.add_argument('--splits', nargs='+', choices=SPLITS, default=SPLITS)
    parser.add_argument('--workers', type=int, default=os.cpu_count(), help='processes')
    parser.add_argument('--examples', type=int, default=3, help='shown of each kind')
    parser.add_argument('--json', type=Path, metavar='FILE', help='also write all findings there')
    args = parser.parse_args(argv)
    if args.workers < 1:
        parser.error(f'--workers must be positive, got {args.workers}')
    if args.examples < 0:
        parser.error(f'--examples must not be negative, got {args.examples}')
    return args


def show(report: Report, examples: int, console: Console) -> None:
    for split, count in report.images.items():
        console.print(f'{split}: {count} images')
    counts = report.counts()
    if not counts:
        console.print('nothing found')
        return
    table = Table('split', 'kind', 'found')
    for (split, kind), count in counts.items():
        table.add_row(split, kind, str(count))
    console.print(table)
    for split, kind in counts:
        found = [finding for finding in report.findings[split] if finding.kind == kind]
        for _, where, what in found[:examples]:
            console.print(f'{split}, {kind}: {where}: {what}', soft_wrap=True)


def main(argv: Optional[List[str]] = None) -> int:
    args = parse_args(argv)
    console = plain_console()
    with errors_in_one_line(args.debug), progress_bars(console) as bars:
        if args.json:
            check_writable(args.json)
        cfg = load_config(args.config, args.cfg_options)
        tasks = {}

        def progress(split: str, done: int, total: int) -> None:
            if split not in tasks:
                tasks[split] = bars.add_task(split, total=total)
            bars.update(tasks[split], completed=done)

        report = inspect_data(cfg, args.splits, args.workers, progress)
        if args.json:
            with whole_file(args.json) as file:
                file.write_text(json.dumps(report.to_dict(), indent=1) + '\n')
    show(report, args.examples, console)
    return 1 if report.counts() else 0
