"""Read every image and annotation of a config's data sets, and report errors in them."""

import argparse

from rich.console import Console
from rich.table import Table

from ..engine.config import load_config
from ..engine.preflight.dataset_audit import AuditReport, audit_dataset
from ..utils import check_writable, write_json
from ..utils.command_line import errors_in_one_line, plain_console, progress_bars


def show(report: AuditReport, examples: int, console: Console) -> None:
    for split, count in report.images.items():
        console.print(f'{split}: {count} images')
    for split, earlier in report.same.items():
        console.print(f'{split}: the data set of {earlier}')
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


def main(args: argparse.Namespace) -> int:
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

        report = audit_dataset(cfg, args.splits, args.workers, progress)
        if args.json:
            write_json(args.json, report.to_dict())
    show(report, args.examples, console)
    return 1 if report.counts() else 0
