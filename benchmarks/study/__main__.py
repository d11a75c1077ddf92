"""Train and test a grid of models, and compare them: docs/studies.md.

    python -m benchmarks.study camvid            # a grid of benchmarks/study/grids
    python -m benchmarks.study my_grid.yml --quick --jobs 2
    python -m benchmarks.study camvid --only model=SegFormer-B0,B0-RALA
    python -m benchmarks.study camvid --costs    # time and memory again, on an idle machine
    python -m benchmarks.study camvid --docs     # the results into their page of docs/

An interrupted study is resumed by the same command. Writes runs.jsonl, results.md, pictures and
weights. The exit code is 1 if a run failed, 2 for bad arguments or a bad grid.
"""

import argparse
import os
import shlex
import sys
from pathlib import Path
from typing import List

# Before torch: threads of two workers would spin against each other, as those of one operation do.
os.environ['OMP_NUM_THREADS'] = '1'
os.environ.setdefault('KINETO_LOG_LEVEL', '99')

import mmlinattn  # noqa: F401  registers everything
from mmlinattn.utils.command_line import unwind_on_sigterm

from .checks import DOCS
from .grid import GRIDS, ROOT, GridError, build, read, select
from .session import add_arguments, conduct, console


def parse_args(argv: List[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog='python -m benchmarks.study',
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    names = sorted(path.stem for path in GRIDS.glob('*.yml'))
    add('grid', help=f'YAML file, or {", ".join(names)}')
    add('--quick', action='store_true', help='fewer models, seeds and iterations: minutes')
    add('--seeds', type=int, metavar='N', help='number of seeds in place of that of the grid')
    add('--only', nargs='+', default=[], metavar='AXIS=NAME,NAME', help='these names alone')
    add('--data-root', default=os.environ.get('MMLINATTN_DATA', 'data'), metavar='DIR',
        help='folder of the data sets; default: $MMLINATTN_DATA, else data')  # fmt: skip
    add_arguments(parser)
    args = parser.parse_args(argv)
    if args.jobs < 1:
        parser.error(f'--jobs must be positive, got {args.jobs}')
    for name in ('docs', 'redraw'):
        if getattr(args, name) and (args.quick or args.only or args.seeds):
            parser.error(f'--{name} shows the complete study: leave out --quick, --only, --seeds')
    if args.seeds is not None and args.seeds < 1:
        parser.error(f'--seeds must be positive, got {args.seeds}')
    for text in args.only:
        if not all(text.partition('=')):
            parser.error(f'--only must be AXIS=NAME,NAME, got {text!r}')
    return args


def main(argv: List[str]) -> int:
    args = parse_args(argv)
    path = GRIDS / f'{args.grid}.yml'
    content = read(path if path.is_file() else Path(args.grid), args.quick)
    pairs = (text.partition('=') for text in args.only)
    select(content, {axis: names.split(',') for axis, _, names in pairs})
    if args.seeds:
        content.update(seeds=args.seeds, more_seeds={})
    folder = args.out or ROOT / 'work_dirs' / 'study' / str(content.get('name'))
    # Without the folders of this machine.
    words = [args.grid, *(['--quick'] if args.quick else []), *(f'--only={of}' for of in args.only)]
    words += [f'--seeds={args.seeds}'] if args.seeds else []
    content['command'] = shlex.join(['python', '-m', 'benchmarks.study', *words])
    grid = build(content, os.path.abspath(args.data_root), str(folder.resolve().parent))
    return conduct(grid, folder, args, DOCS / grid.page.get('document', 'studies.md'))


def run(main, argv: List[str]) -> int:
    """Return the exit code of a study, also if it is interrupted or its grid has a mistake."""
    try:
        with unwind_on_sigterm():
            return main(argv)
    except (GridError, BlockingIOError) as error:
        console.print(f'error: {error}', style='red', soft_wrap=True, markup=False)
        return 2
    except KeyboardInterrupt:
        console.print('interrupted: the same command goes on')
        return 130


if __name__ == '__main__':
    sys.exit(run(main, sys.argv[1:]))
