"""Measure attentions, layers and backbones against their baselines.

    python benchmarks/run.py --quick
    python benchmarks/run.py --cases rala --tokens 4k 16k 65k 262k --out work_dirs/benchmarks
    python benchmarks/run.py --cases ravlt-s --images 224x224 512x512 --docs ravlt-s

Writes results.json and results.md. Baselines that should give the same result are compared
before any timing. A baseline that differs or raises an error is not timed, and the exit code is 1.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Dict, List, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
# torch's profiler reports on stderr if it finds no GPU.
os.environ.setdefault('KINETO_LOG_LEVEL', '99')

import torch
from rich.console import Console
from rich.markdown import Markdown
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.cases import CASES, Setup, map_shape
from benchmarks.machine import facts, parse_device
from benchmarks.measure import keep_freed_memory
from benchmarks.report import check_place, check_results, publish, redraw, write
from benchmarks.suite import MODES, Effort, Result, run_case

DTYPES = ('float32', 'float16', 'bfloat16', 'float64')
TOKENS = {
    False: ['1k', '4k', '16k', '65k', '262k'],
    True: ['1k', '4k', '16k'],
}
IMAGES = {False: ['512x512', '800x1280'], True: ['256x256', '512x512']}


def parse_args(argv: List[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--cases', nargs='+', choices=tuple(CASES), metavar='NAME')
    parser.add_argument('--list', action='store_true', help='show the cases and stop')
    parser.add_argument('--device', default='cpu', help='cpu, cuda or cuda:N')
    parser.add_argument('--dtype', choices=DTYPES, default='float32')
    parser.add_argument('--modes', nargs='+', choices=MODES, default=list(MODES))
    parser.add_argument(
        '--tokens', nargs='+', type=tokens, metavar='N',
        help='of operators and layers; 4k stands for 4096, 262k for 262144',
    )  # fmt: skip
    parser.add_argument('--images', nargs='+', type=image, metavar='HxW', help='for backbones')
    parser.add_argument('--batch', nargs='+', type=positive, metavar='B', default=[1])
    parser.add_argument('--heads', type=positive, default=2)
    parser.add_argument('--head-dim', type=positive, default=32)
    parser.add_argument('--quick', action='store_true', help='fewer sizes and rounds')
    parser.add_argument('--rounds', type=positive, help='least number of calls of each baseline')
    parser.add_argument('--budget', type=float, help='seconds; longer calls are left out')
    parser.add_argument(
        '--keep-memory', action='store_true',
        help='freed memory stays with the process',
    )  # fmt: skip
    parser.add_argument('--threads', type=positive, help='of torch on the CPU')
    parser.add_argument(
        '--processor-time', action='store_true',
        help='of all threads on the CPU, where other programs run; use with --threads 1',
    )  # fmt: skip
    parser.add_argument('--no-plots', action='store_true', help='tables alone, for --docs')
    parser.add_argument('--out', type=Path, default=Path('work_dirs/benchmarks'), metavar='DIR')
    parser.add_argument(
        '--docs', metavar='NAME', help='show the results in docs/benchmarks.md, too'
    )
    parser.add_argument(
        '--redraw', metavar='NAME',
        help='measure nothing: show docs/benchmarks/NAME.json in docs/benchmarks.md again',
    )  # fmt: skip
    args = parser.parse_args(argv)
    try:
        for name in filter(None, (args.docs, args.redraw)):
            check_place(name)
        if args.redraw:
            check_results(args.redraw)
    except ValueError as error:
        parser.error(str(error))
    args.device = parse_device(args.device, parser)
    if args.head_dim % 4:
        parser.error(f'--head-dim must be a multiple of 4, got {args.head_dim}')
    args.tokens = args.tokens or [tokens(text) for text in TOKENS[args.quick]]
    args.images = args.images or [image(text) for text in IMAGES[args.quick]]
    if not args.cases:
        args.cases = [name for name, case in CASES.items() if not case.chosen]
    args.rounds = args.rounds or (3 if args.quick else 5)
    args.budget = args.budget or (2.0 if args.quick else 20.0)
    return args


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f'must be positive, got {text}')
    return value


def tokens(text: str) -> int:
    """Parse a number of tokens: ``'4096'``, or ``'4k'`` for the power of two nearest to 4000."""
    try:
        if not text.endswith('k'):
            return positive(text)
        return 2 ** round(torch.tensor(float(text[:-1]) * 1000).log2().item())
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f'must be like 4096 or 4k, got {text!r}') from None


def image(text: str) -> Tuple[int, int]:
    try:
        height, width = (positive(side) for side in text.split('x'))
    except ValueError:
        raise argparse.ArgumentTypeError(f'must be HxW, like 800x1280, got {text!r}') from None
    return height, width


def setups(args: argparse.Namespace, kind: str, batch: int) -> List[Setup]:
    shapes = args.images if kind == 'backbone' else [map_shape(n) for n in args.tokens]
    dtype = getattr(torch, args.dtype)
    return [Setup(s, batch, args.heads, args.head_dim, dtype, args.device) for s in shapes]


def context(args: argparse.Namespace, argv: List[str]) -> Dict[str, object]:
    """Return the context that is needed to judge and to repeat the measurement."""
    found = facts('run.py', argv, args.device)
    settings = f'{args.dtype}, {args.rounds} or more calls each, in turns'
    if any(CASES[name].kind != 'backbone' for name in args.cases):
        settings += f'; heads: {args.heads}, of {args.head_dim} channels'
    found['settings'] = settings
    if args.no_plots:
        found['plots'] = False
    return found


def main(argv: List[str]) -> int:
    args = parse_args(argv)
    # Wide enough for full table rows in a pipe.
    console = Console(width=None if sys.stdout.isatty() else 160)
    if args.list:
        for case in CASES.values():
            console.print(f'[bold]{case.name}[/] ({case.kind}): {case.about}')
        return 0
    if args.redraw:
        redraw(args.redraw)
        return 0
    if args.keep_memory:
        keep_freed_memory()
    if args.threads:
        torch.set_num_threads(args.threads)
    seconds = 0.3 if args.quick else 1.0
    effort = Effort(args.rounds, seconds, args.budget, args.processor_time)
    found = context(args, argv)
    results: List[Result] = []
    jobs = [(CASES[n], m, b) for n in args.cases for m in args.modes for b in args.batch]
    columns = (TextColumn('{task.description}'), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        bar = progress.add_task('', total=len(jobs))
        for case, mode, batch in jobs:

            def show(size: str, text: str = f'{case.name}, {mode}, batch {batch}') -> None:
                progress.update(bar, description=f'{text}, {size}')

            results += run_case(case, setups(args, case.kind, batch), mode, effort, show)
            progress.advance(bar)
            # Save after each job, so that an interruption loses no results.
            paths = write(results, found, args.out)
    console.print(Markdown(paths[1].read_text()))
    console.print('Written: ' + ', '.join(map(str, paths)))
    failed = [result for result in results if result.failed]
    if args.docs and failed:
        console.print('docs/benchmarks.md is unchanged, since a baseline failed')
    elif args.docs:
        publish(args.docs, json.loads(paths[0].read_text()))
        console.print('Written: docs/benchmarks.md')
    for r in failed:
        console.print(
            f'[red]{r.case}, {r.mode}, batch {r.batch}, {r.size}: {r.baseline}[/]: {r.skipped}',
            soft_wrap=True,
        )
    return int(bool(failed))


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
