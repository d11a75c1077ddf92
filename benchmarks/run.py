"""Measure attentions, layers and backbones against their baselines.

    python benchmarks/run.py --quick
    python benchmarks/run.py --cases rala --tokens 4k 16k 65k 262k --out work_dirs/benchmarks
    python benchmarks/run.py --cases mit-b0 --images 512x512 1024x1024 --docs mit-b0

Writes results.json and results.md. Baselines that should give the same result are compared
before any timing. A baseline that differs or raises an error is not timed, and the exit code is 1.
"""

import argparse
import json
import os
import sys
from itertools import product
from pathlib import Path
from typing import Dict, List, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
# torch's profiler reports on stderr if it finds no GPU.
os.environ.setdefault('KINETO_LOG_LEVEL', '99')

import torch

from benchmarks.cases import CASES, Setup, map_shape
from benchmarks.machine import facts, parse_device
from benchmarks.measure import keep_freed_memory
from benchmarks.report import DOCS, publish, redraw, write
from benchmarks.suite import MODES, Effort, Result, run_case

DTYPES = ('float32', 'float16', 'bfloat16', 'float64')
TOKENS = {False: ['1k', '4k', '16k', '65k', '262k'], True: ['1k', '4k', '16k']}
IMAGES = {False: ['512x512', '800x1280'], True: ['256x256', '512x512']}


def parse_args(argv: List[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add('--cases', nargs='+', choices=tuple(CASES), metavar='NAME', help='default: operators')
    add('--list', action='store_true', help='show the cases and stop')
    add('--device', default='cpu', help='cpu, cuda or cuda:N')
    add('--dtype', choices=DTYPES, default='float32')
    add('--modes', nargs='+', choices=MODES, default=list(MODES))
    add('--tokens', nargs='+', type=tokens, metavar='N',
        help='of operators and layers; 4k stands for 4096, 262k for 262144')  # fmt: skip
    add('--images', nargs='+', type=image, metavar='HxW', help='for backbones')
    add('--batch', nargs='+', type=positive, metavar='B', default=[1])
    add('--heads', type=positive, default=2)
    add('--head-dim', type=positive, default=32)
    add('--quick', action='store_true', help='fewer sizes and rounds')
    add('--rounds', type=positive, help='least number of calls of each baseline')
    add('--budget', type=float, help='seconds; longer calls are left out')
    add('--keep-memory', action='store_true', help='freed memory stays with the process')
    add('--threads', type=positive, help='of torch on the CPU')
    add('--processor-time', action='store_true',
        help='on the CPU, of all threads, if other programs run; use with --threads 1')  # fmt: skip
    add('--no-plots', action='store_true', help='tables alone, for --docs')
    add('--join-modes', action='store_true', help='one table, the modes side by side')
    add('--out', type=Path, default=Path('work_dirs/benchmarks'), metavar='DIR')
    add('--docs', metavar='NAME', help='show the results in docs/benchmarks/NAME.md, too')
    add('--redraw', metavar='NAME',
        help='measure nothing: show docs/benchmarks/NAME.json again')  # fmt: skip
    args = parser.parse_args(argv)
    if args.redraw and not (DOCS / 'benchmarks' / f'{args.redraw}.json').is_file():
        parser.error(f'there is no docs/benchmarks/{args.redraw}.json: measure it with --docs')
    args.device = parse_device(args.device, parser)
    if args.head_dim % 4:
        parser.error(f'--head-dim must be a multiple of 4, got {args.head_dim}')
    args.tokens = args.tokens or [tokens(text) for text in TOKENS[args.quick]]
    args.images = args.images or [image(text) for text in IMAGES[args.quick]]
    if not args.cases:
        args.cases = [name for name, case in CASES.items() if case.kind == 'operator']
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
    if args.join_modes:
        found['joined'] = True
    return found


def main(argv: List[str]) -> int:
    args = parse_args(argv)
    if args.list:
        print(*(f'{case.name} ({case.kind}): {case.about}' for case in CASES.values()), sep='\n')
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
    for name, mode, batch in product(args.cases, args.modes, args.batch):
        case = CASES[name]
        for result in run_case(case, setups(args, case.kind, batch), mode, effort):
            results.append(result)
            took = result.skipped or f'{1e3 * result.time.median:.3g} ms'
            print(f'{name}, {mode}, batch {batch}, {result.size}: {result.baseline}: {took}')
        # Save after each case, so that an interruption loses no results.
        paths = write(results, found, args.out)
    print(paths[1].read_text())
    print('Written:', *paths)
    failed = any(result.failed for result in results)
    if args.docs and failed:
        print(f'docs/benchmarks/{args.docs}.md is unchanged, since a baseline failed')
    elif args.docs:
        publish(args.docs, json.loads(paths[0].read_text()))
        print(f'Written: docs/benchmarks/{args.docs}.md')
    return int(failed)


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
