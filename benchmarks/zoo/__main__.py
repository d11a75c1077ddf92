"""Train every attention in DeiT-nano and RAVLT-nano on Shapes and BCCD cells, and compare them.

    python -m benchmarks.zoo                   # all
    python -m benchmarks.zoo --attentions RALA SoftmaxAttention --seeds 1
    python -m benchmarks.zoo --attentions my_module.MyAttention SoftmaxAttention
    python -m benchmarks.zoo --costs           # measure time and memory again, on an idle machine
    python -m benchmarks.zoo --docs            # write the existing results to docs/comparison.md

A study of benchmarks.study: an interrupted run is resumed by the same command. A training with
other settings, data or torch version is repeated with a message. The exit code is 1 if a training
failed, 2 for bad arguments.
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

from benchmarks.study.__main__ import run
from benchmarks.study.grid import ROOT, GridError, build
from benchmarks.study.session import add_arguments, conduct, console

from . import data, plan

MISSING = 'BCCD cells: skipped, as BCCD is not in data/bccd (docs/datasets.md)'
PAGE = ROOT / 'docs' / 'comparison.md'


def parse_args(argv: List[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog='python -m benchmarks.zoo',
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add, axes = parser.add_argument, plan.content()['axes']
    text = 'names, or module.Class of your own; default: all of this package'
    add('--attentions', nargs='+', default=[*axes['attention']], metavar='NAME', help=text)
    for axis in ('backbone', 'data'):
        option = '--data' if axis == 'data' else '--backbones'
        add(option, nargs='+', default=[*axes[axis]], choices=axes[axis], metavar='NAME')
    add(
        '--seeds',
        type=int,
        default=plan.SEEDS,
        help=f'of {", ".join(plan.MAIN)}; of the others one',
    )
    add('--bccd', type=Path, metavar='DIR', help='folder of BCCD; default: data/bccd')
    add('--quick', action='store_true', help='a few images and one epoch, to try the program')
    add_arguments(parser)
    args = parser.parse_args(argv)
    for name in ('seeds', 'jobs'):
        if getattr(args, name) < 1:
            parser.error(f'--{name} must be positive, got {getattr(args, name)}')
    try:
        args.bccd = data.find_bccd(args.bccd)
        args.names = dict(backbone=args.backbones, data=args.data, attention=args.attentions)
        args.content = plan.content(args.names, args.seeds, args.quick)
    except (FileNotFoundError, GridError) as error:
        parser.error(str(error))
    parts = {f'{axis}s' if axis != 'data' else axis: [*axes[axis]] for axis in axes}
    words = [
        word
        for option, names in parts.items()
        if getattr(args, option) != names
        for word in (f'--{option}', *getattr(args, option))
    ]
    words += [f'--seeds={args.seeds}'] if args.seeds != parser.get_default('seeds') else []
    words += ['--quick'] if args.quick else []
    if args.docs and words:
        parser.error(f'--docs shows the complete study: leave out {words[0]}')
    if args.docs and not args.bccd:
        parser.error('--docs shows the complete study: it needs BCCD in data/bccd')
    # Without the folders of this machine.
    args.content['command'] = shlex.join(['python', '-m', 'benchmarks.zoo', *words])
    return args


def main(argv: List[str]) -> int:
    args = parse_args(argv)
    content, folder = args.content, (args.out or ROOT / 'work_dirs' / 'zoo').resolve()
    if not args.bccd and content['axes']['data'].pop('bccd-cells', None):
        console.print(MISSING, style='yellow')
        content['notes'] = [MISSING]
    if not content['axes']['data']:
        return 2
    data.prepare(folder / 'data', content.pop('sizes'), [*content['axes']['data']], args.bccd)
    return conduct(build(content, str(folder / 'data')), folder, args, PAGE)


if __name__ == '__main__':
    sys.exit(run(main, sys.argv[1:]))
