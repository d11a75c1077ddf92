"""Train and test a grid of models, and compare them: docs/studies.md.

    python -m benchmarks.study camvid            # a grid of benchmarks/study/grids
    python -m benchmarks.study my_grid.yml --quick --jobs 2
    python -m benchmarks.study camvid --only model=SegFormer-B0,B0-RALA
    python -m benchmarks.study camvid --costs    # time and memory, on an idle machine
    python -m benchmarks.study camvid --docs     # the results into docs/studies/camvid.md
    python -m benchmarks.study camvid --redraw   # that page again, of docs/studies/camvid.json

An interrupted study is resumed by the same command. The exit code is 1 if a run failed, 2 for bad
arguments or a bad grid.
"""

import argparse
import json
import os
import shlex
import sys
from pathlib import Path
from typing import List

os.environ['OMP_NUM_THREADS'] = '1'  # before torch, for the costs
os.environ.setdefault('KINETO_LOG_LEVEL', '99')

import mmlinattn  # noqa: F401  registers everything
from mmlinattn.utils import write_json
from mmlinattn.utils.command_line import unwind_on_sigterm

from . import costs, execution
from .grid import GRIDS, ROOT, Grid, GridError, Run, build, read, select
from .results import Results, committed, draw, page, table

DOCS = ROOT / 'docs'


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
    add('--jobs', type=int, default=2, metavar='N', help='processes of one thread each')
    add('--out', type=Path, metavar='DIR', help='default: work_dirs/study/NAME')
    add('--costs', action='store_true', help='no training: measure all models in turns')
    add('--docs', action='store_true', help='no training: what is there into docs/')
    add('--redraw', action='store_true', help='no training: the page of docs/ again')
    args = parser.parse_args(argv)
    for name in ('jobs', 'seeds'):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            parser.error(f'--{name} must be positive, got {getattr(args, name)}')
    if args.docs and (args.quick or args.only or args.seeds):
        parser.error('--docs shows the complete study: leave out --quick, --only, --seeds')
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
    # Pages of docs/ name no folder of the machine.
    words = [args.grid] if args.docs else [word for word in argv if word != '--costs']
    grid = build(dict(content, command=shlex.join(['python', '-m', 'benchmarks.study', *words])))
    if args.redraw:
        publish(committed(grid, DOCS / 'studies' / f'{grid.name}.json'))
        return 0
    folder = (args.out or ROOT / 'work_dirs/study' / grid.name).resolve()
    execution.prepare(grid)
    print(f'{grid.name}: checking {len(list(grid.points()))} models')
    grid.check()
    failed: List[str] = []
    if args.costs:
        models = map(grid.run, grid.points())
        configs = {run.point: run.load() for run in models if run.point not in grid.refused}
        found = costs.measure(configs, grid.cost)
        write_json(folder / 'costs.json', dict(found, facts=execution.facts()), indent=1)
    elif not args.docs:
        failed = train(grid, folder, args.jobs)
    shown = results(grid, folder)
    if args.docs:
        publish(shown)
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f'# {grid.title}', '', *table(shown), *draw(shown, folder, '')]
    (folder / 'results.md').write_text('\n'.join(lines) + '\n')
    print(*lines, sep='\n')
    print(f'Written: {folder / "results.md"}')
    return int(bool(failed))


def train(grid: Grid, folder: Path, jobs: int) -> List[str]:
    """Execute the search for learning rates and then all other runs; return those that failed."""
    failed = execute(grid.searches(), folder, jobs, 'learning rates')
    runs = results(grid, folder).runs()
    failed += execute([run for run in runs if not run.teacher], folder, jobs, 'runs')
    return failed + execute([run for run in runs if run.teacher], folder, jobs, 'linearized models')


def execute(runs: List[Run], folder: Path, jobs: int, heading: str) -> List[str]:
    """Execute the runs that have no result, and return the names of those that failed."""
    found = execution.records(folder, runs)
    left = [run for run in runs if 'metrics' not in found.get(run.name, {})]
    failed = []
    for done, (run, record) in enumerate(execution.execute_all(left, folder, jobs), 1):
        failed += [run.name] if 'error' in record else []
        said = record.get('error') or f'{record["wall"]:.0f} s'
        print(f'{heading}, {len(runs) - len(left) + done} of {len(runs)}, {run.name}: {said}')
    return failed


def results(grid: Grid, folder: Path) -> Results:
    """Return what has been recorded with these settings."""
    file = folder / 'costs.json'
    measured = json.loads(file.read_text()) if file.is_file() else {}
    found = Results(grid, execution.records(folder, grid.searches()), measured)
    found.records.update(execution.records(folder, found.runs()))
    return found


def publish(found: Results) -> None:
    """Write records and page to ``docs/studies/NAME.json`` and ``NAME.md``, pictures beside them.

    Raises:
        GridError: a run has no result.
    """
    grid, path = found.grid, DOCS / 'studies' / f'{found.grid.name}.md'
    missing = [run.name for run in found.runs() if 'metrics' not in found.records.get(run.name, {})]
    if missing or not found.records:
        raise GridError(f'{grid.name} has no result of {", ".join(missing[:3])}: run it first')
    content = dict(command=grid.command, notes=[*grid.notes], refused=grid.refused)
    content.update(costs=found.costs, records=[*found.records.values()])
    write_json(path.with_suffix('.json'), content, indent=0)
    path.write_text(page(found, DOCS / 'images'))
    print(f'Written: {path}')


def run(argv: List[str]) -> int:
    """Return the exit code of a study, also if it is interrupted or its grid has a mistake."""
    try:
        with unwind_on_sigterm():
            return main(argv)
    except GridError as error:
        print(f'error: {error}')
        return 2
    except KeyboardInterrupt:
        print('interrupted: the same command goes on')
        return 130


if __name__ == '__main__':
    sys.exit(run(sys.argv[1:]))
