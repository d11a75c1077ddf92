"""Train every attention in DeiT-nano and RAVLT-nano on Shapes and BCCD cells, and compare them.

    python -m benchmarks.zoo                   # all: under 45 minutes on two cores
    python -m benchmarks.zoo --attentions RALA SoftmaxAttention --seeds 1
    python -m benchmarks.zoo --costs           # measure time and memory again, on an idle machine
    python -m benchmarks.zoo --docs            # write the existing results to docs/zoo.md

An interrupted run is resumed by the same command. A training with other settings, data or torch
version is repeated with a message. Writes results.md, zoo.png, one JSON file per training, and
costs.json. The exit code is 1 if a training failed, 2 for bad arguments.
"""

import argparse
import os
import shlex
import sys
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Dict, List

# Before torch: threads of two workers would spin against each other, as those of one operation do.
os.environ['OMP_NUM_THREADS'] = '1'
os.environ.setdefault('KINETO_LOG_LEVEL', '99')

from rich.console import Console
from rich.markdown import Markdown
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

import mmlinattn  # noqa: F401  registers everything

from . import costs, data, page, plan, pool, training

ROUNDS = 15
MISSING = 'skipped, as BCCD is not in data/bccd (docs/datasets.md)'
PAGE, CHART = plan.ROOT / 'docs' / 'zoo.md', plan.ROOT / 'docs' / 'images' / 'zoo.png'
console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)


def parse_args(argv: List[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog='python -m benchmarks.zoo',
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add, names = parser.add_argument, plan.attentions()
    add('--attentions', nargs='+', default=names, choices=names, metavar='NAME')
    add('--hosts', nargs='+', default=list(plan.HOSTS), choices=plan.HOSTS, metavar='NAME')
    add('--data', nargs='+', default=list(plan.DATA), choices=plan.DATA, metavar='NAME')
    add('--seeds', type=int, default=3, help=f'of {", ".join(plan.MAIN)}; of the others one')
    add('--workers', type=int, default=2, help='processes of one thread each')
    add('--bccd', type=Path, metavar='DIR', help='folder of BCCD; default: data/bccd')
    add('--out', type=Path, default=Path('work_dirs/zoo'), metavar='DIR')
    add('--costs', action='store_true', help='no training: measure time and memory again')
    add('--docs', action='store_true', help='no training: what is there into docs/zoo.md')
    add('--tiny', action='store_true', help='a few images and one epoch, to try the program')
    args = parser.parse_args(argv)
    for name in ('seeds', 'workers'):
        if getattr(args, name) < 1:
            parser.error(f'--{name} must be positive, got {getattr(args, name)}')
    try:
        args.bccd = data.find_bccd(args.bccd)
    except FileNotFoundError as error:
        parser.error(str(error))
    args.sizes = plan.TINY if args.tiny else plan.Sizes()
    return args


def main(argv: List[str]) -> int:
    args = parse_args(argv)
    folder = args.out.resolve()
    roots = data.prepare(folder / 'data', args.sizes, args.bccd)
    present = [name for name in args.data if name in roots]
    for name in args.data:
        if name not in roots:
            console.print(f'{plan.DATA[name]}: {MISSING}', style='yellow')
    jobs, refused = plan.split(plan.jobs(args.hosts, present, args.attentions, args.seeds))
    wanted = {
        job: training.settings(plan.config(job, roots[job.data], args.sizes), roots[job.data])
        for job in jobs
    }
    records = {job: training.read(folder, job, wanted[job]) for job in jobs}
    if not (args.costs or args.docs):
        train(jobs, records, folder, roots, args)
    models = {
        host: [name for name in args.attentions if (host, name) not in refused]
        for host in args.hosts
    }
    found, rounds = costs.read(folder), 2 if args.tiny else ROUNDS
    if args.costs or not (args.docs or costs.complete(found, models, rounds)):
        console.print('time and memory of each model')
        found = costs.measure(folder, models, rounds)
    made_by = [argument for argument in argv if argument not in ('--costs', '--docs')]
    zoo = page.Zoo(
        attentions=args.attentions,
        hosts=args.hosts,
        data=args.data,
        records=[record or job.fields() for job, record in records.items()],
        refused=refused,
        costs=found,
        missing={name: MISSING for name in args.data if name not in roots},
        command=shlex.join(['python', '-m', 'benchmarks.zoo', *made_by]),
    )
    write(zoo, folder, args.docs)
    failed = [job.name for job, record in records.items() if 'error' in record]
    if failed:
        console.print(f'failed: {", ".join(failed)}', style='red', soft_wrap=True)
    return int(bool(failed))


def train(
    jobs: List[plan.Job],
    records: Dict[plan.Job, dict],
    folder: Path,
    roots: Dict[str, Path],
    args: argparse.Namespace,
) -> None:
    """Run unfinished trainings and put their records into ``records``."""
    stale = sum('stale' in record for record in records.values())
    left = [job for job in jobs if 'accuracy' not in records[job]]
    console.print(f'{len(jobs)} trainings, {len(jobs) - len(left)} are done')
    if stale:
        console.print(f'{stale} were made with other settings, data or torch: made anew')
    by_name = {job.name: job for job in jobs}
    columns = (TextColumn('{task.description}'), BarColumn(), MofNCompleteColumn())
    clocks = (TimeElapsedColumn(), TextColumn('left'), TimeRemainingColumn())
    with Progress(*columns, *clocks, console=console) as progress:
        bar = progress.add_task('trainings', total=len(jobs), completed=len(jobs) - len(left))
        for record in pool.run(left, folder, roots, args.sizes, args.workers):
            name = plan.Job(**{key: record[key] for key in plan.Job.__annotations__}).name
            records[by_name[name]] = record
            progress.advance(bar)
            score = f'{record["accuracy"]:.1f}%' if 'error' not in record else record['error']
            progress.print(f'{name}: {score}, {record["seconds"]:.0f} s', soft_wrap=True)


def write(zoo: page.Zoo, folder: Path, docs: bool) -> None:
    """Write table and chart to the folder or, with ``docs``, to the documentation."""
    drawn = CHART if docs else folder / 'zoo.png'
    if any('accuracy' in record for record in zoo.records):
        drawn.parent.mkdir(parents=True, exist_ok=True)
        page.chart(zoo).savefig(drawn)
        zoo.chart = 'images/zoo.png' if docs else 'zoo.png'
    lines = page.table(zoo)
    if docs:
        PAGE.write_text(page.replaced(PAGE.read_text(), lines))
        console.print(f'Written: {PAGE}, {CHART}')
        return
    text = '\n'.join(lines) + '\n'
    (folder / 'results.md').write_text(text)
    console.print(Markdown(text))
    console.print(f'Written: {folder / "results.md"}, {drawn}', soft_wrap=True)


if __name__ == '__main__':
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        console.print('interrupted: the same command goes on')
        sys.exit(130)
    except BrokenProcessPool:
        console.print('a worker was killed: see workers.log; the same command goes on', style='red')
        sys.exit(1)
