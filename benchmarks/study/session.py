"""One session of a study: it runs what is missing, and writes tables and pictures."""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Dict, List, Tuple

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

from benchmarks.measure import keep_freed_memory
from mmlinattn.checkpoints import load_state_dict
from mmlinattn.checkpoints.download import sha256_of
from mmlinattn.utils import write_json
from mmlinattn.utils.suggest import shorten

from . import charts, costs, page, pool, records
from .checks import CHOOSING
from .execution import clean, facts, weights_path
from .grid import ROOT, Grid, GridError, Run, chosen_rates, score

COMMITTED = ROOT / 'docs' / 'studies'
IMAGES = ROOT / 'docs' / 'images'
console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of every study."""
    add = parser.add_argument
    add('--jobs', type=int, default=2, metavar='N', help='processes of one thread each')
    add(
        '--out',
        type=Path,
        metavar='DIR',
        help='default: work_dirs/study/NAME; of the zoo work_dirs/zoo',
    )
    add('--costs', action='store_true',
        help='no training: measure time and memory again, all models in turns')  # fmt: skip
    add('--docs', action='store_true', help='no training: what is there into docs/')
    add('--redraw', action='store_true',
        help='no training: page and pictures again from docs/studies/NAME.json')  # fmt: skip
    add('--weights', action='store_true',
        help='finished runs whose weights are missing are trained again')  # fmt: skip
    add('--committed', action='store_true',
        help='runs in docs/studies/NAME.json with the same settings count as done; they have no '
             'weights')  # fmt: skip


class Session:
    """A study in its folder.

    Args:
        grid: the study.
        folder: where records, weights and pages go.
    """

    def __init__(self, grid: Grid, folder: Path) -> None:
        self.grid, self.folder, self.file = grid, folder, folder / records.FILE
        console.print(f'{grid.name}: checking {len(list(grid.points()))} models')
        self.refused = grid.refusals()
        self.hashes: Dict[str, str] = {}
        self.failed: List[str] = []  # in this session

    def wanted(self, runs: List[Run]) -> Dict[str, str]:
        """Return the hash of the settings of each run."""
        for run in runs:
            if run.name not in self.hashes:
                self.hashes[run.name] = run.settings()
        return {run.name: self.hashes[run.name] for run in runs}

    def possible(self, runs: List[Run]) -> List[Run]:
        """Return the runs whose models accept their attention."""
        return [run for run in runs if run.point not in self.refused]

    def searched(self) -> Dict[str, float]:
        """Return the chosen learning rate of each point."""
        found = records.read(self.file, self.wanted(self.possible(self.grid.search())))
        return {point: rate for point, (rate, _) in chosen_rates(self.grid, found).items()}

    def runs(self) -> List[Run]:
        """Return all runs of the result; those without a learning rate are left out."""
        rates = self.searched()
        runs = self.possible(self.grid.runs(rates))
        return [run for run in runs if not self.grid.learning_rates or run.point in rates]

    def train(self, jobs: int, weights: bool = False) -> None:
        """Execute the search for learning rates and then all other runs.

        Args:
            jobs: number of processes.
            weights: a run of the result without its file of weights is not done.

        Raises:
            GridError: see :meth:`.grid.Grid.check_weights`.
        """
        self.grid.check_weights()
        with records.lock(self.folder):
            if self.grid.learning_rates:
                self._execute(self.possible(self.grid.search()), jobs, 'learning rates')
            runs = self.runs()
            self._execute([run for run in runs if not run.teacher], jobs, 'runs', weights)
            students = [run for run in runs if run.teacher]
            if students:
                self._execute(students, jobs, 'linearised models', weights)
            self._keep_weights()

    def take_committed(self) -> None:
        """Record the runs of ``docs/studies`` that the folder has not."""
        source = COMMITTED / f'{self.grid.name}.json'
        if not source.is_file():
            raise GridError(f'--committed: there is no docs/studies/{source.name} yet')
        if any(run.teacher for run in self.grid.runs()):
            raise GridError(
                '--committed: linearised models need the weights of their teachers, which are not '
                'published: leave it out'
            )
        found = json.loads(source.read_text())['records']
        with records.lock(self.folder):
            here = {
                (record['run'], record['settings'])
                for record in records.lines(self.file)
                if 'metrics' in record
            }
            new = [of for of in found if (of['run'], of['settings']) not in here]
            for record in new:
                records.append(self.file, record)
        console.print(f'{len(new)} runs taken from docs/studies/{source.name}')

    def _execute(self, runs: List[Run], jobs: int, heading: str, weights: bool = False) -> None:
        """Execute the runs that have no result and record them."""
        wanted = self.wanted(runs)
        found = records.read(self.file, wanted)
        done = [run for run in runs if 'metrics' in found.get(run.name, {})]
        if weights:
            done = [run for run in done if run.checkpoint or any(
                path.is_file() for path in self._weights(run))]  # fmt: skip
        for run in done:
            clean(run, self.folder, wanted[run.name])
        names = {run.name for run in done}
        left = [run for run in runs if run.name not in names]
        console.print(f'{len(runs)} {heading}, {len(runs) - len(left)} are done')
        other = records.stale(self.file, wanted)
        if other:
            console.print(f'{len(other)} were made with other settings or another torch: made anew')
        if not left:
            return
        columns = (TextColumn('{task.description}'), BarColumn(), MofNCompleteColumn())
        clocks = (TimeElapsedColumn(), TextColumn('left'), TimeRemainingColumn())
        with Progress(*columns, *clocks, console=console) as progress:
            bar = progress.add_task(heading, total=len(runs), completed=len(runs) - len(left))
            todo = [(run, wanted[run.name]) for run in left]
            for (run, settings), record in pool.execute_all(todo, self.folder, jobs):
                records.append(self.file, record)
                if 'error' in record:
                    self.failed.append(run.name)
                else:
                    clean(run, self.folder, settings)
                progress.advance(bar)
                progress.print(f'{run.name}: {self._said(run, record)}', soft_wrap=True)

    def _said(self, run: Run, record: dict) -> str:
        if 'error' in record:
            return record['error']
        metric = self.grid.metrics[0]
        number = score(record, CHOOSING if run.search else metric.split, metric.key)
        said = 'none' if number is None else f'{metric.factor * number:.{metric.digits}f}'
        return f'{metric.name} {said}, {record["wall"]:.0f} s'

    def _weights(self, run: Run) -> Tuple[Path, Path]:
        """Return the files of its weights with and without the learning rate in the name."""
        path = weights_path(self.folder, run)
        return path, path.with_name(f'{run.point}_seed{run.seed}.pth')

    def _keep_weights(self) -> None:
        """Keep the weights of the chosen learning rates, without the rate in their names."""
        if not self.grid.learning_rates:
            return
        runs = self.runs()
        found = records.read(self.file, self.wanted(runs))
        for run in runs:
            path, plain = self._weights(run)
            if path.is_file():
                if 'metrics' not in found.get(run.name, {}):
                    continue
                path.replace(plain)
            elif plain.is_file() and not self._is_of(plain, run):
                plain.unlink()
                console.print(
                    f'weights/{plain.name} is removed, as another rate or other settings made it: '
                    f'for new weights remove the line of {run.name} from {records.FILE}',
                    soft_wrap=True,
                )
        chosen = {run.name for run in runs}
        for run in self.grid.search():
            if run.name not in chosen:
                weights_path(self.folder, run).unlink(missing_ok=True)

    def _is_of(self, weights: Path, run: Run) -> bool:
        """Return True if a run with these settings made the weights."""
        meta = load_state_dict(str(weights))[1]
        made_by = meta.get('run', run.name), meta.get('settings', self.hashes[run.name])
        return made_by == (run.name, self.hashes[run.name])

    def measure(self) -> None:
        """Measure the costs of all models in turns, and write ``costs.json``.

        What this machine and commit measured of other models, left out by ``--only``, stays.
        """
        runs = {
            run.point: run for run in self.possible(list(map(self.grid.run, self.grid.points())))
        }
        file = self.folder / page.COSTS_FILE
        found: Dict[str, dict] = json.loads(file.read_text()) if file.is_file() else {}
        if found.get('facts') != facts():
            found = {'facts': facts()}
        shapes = {str(run.cost): run.cost for run in runs.values()}
        # As in all commands; else the times of a model depend on those before it.
        keep_freed_memory()
        with records.lock(self.folder):  # no training of this study runs beside it
            for key, cost in shapes.items():
                same = {point: run.load() for point, run in runs.items() if str(run.cost) == key}
                for point, measured in costs.measure(same, cost).items():
                    found[point] = dict(measured, settings=runs[point].settings(weights=False))
            write_json(file, found, indent=1)

    def results(self) -> page.Results:
        """Return what has been recorded with these settings."""
        runs = self.possible([*self.grid.search(), *self.grid.runs(self.searched())])
        return page.load(self.grid, self.folder, self.wanted(runs), self.refused)

    def write(self) -> None:
        """Write ``results.md`` and the pictures to the folder."""
        results = self.results()
        lines = [f'# {self.grid.title}', '', *page.table(results)]
        lines += draw(results, self.folder, '')
        text = '\n'.join(lines) + '\n'
        (self.folder / 'results.md').write_text(text)
        console.print(Markdown(text))
        console.print(f'Written: {self.folder / "results.md"}', soft_wrap=True)


def publish(results: page.Results, target: Path) -> None:
    """Write records to ``docs/studies``, and from there into a page of ``docs/``.

    Raises:
        GridError: there is no result, the page has no place for it, or results in ``docs/studies``
            would be lost; nothing is written.
    """
    grid, file = results.grid, COMMITTED / f'{results.grid.name}.json'
    if not any('metrics' in record for record in results.records.values()):
        raise GridError(f'{grid.name} has no result for --docs: run it without --docs first')
    older = json.loads(file.read_text()) if file.is_file() else dict(costs={}, records=[])
    kept, lost = _left_out(older['records'], results)
    if lost:
        raise GridError(
            f'--docs would drop {len(lost)} results of docs/studies/{file.name} ({shorten(lost)}): '
            'add --committed'
        )
    page.replaced(target.read_text(), grid, [])  # refuses a page without a place
    COMMITTED.mkdir(exist_ok=True)
    content = dict(command=grid.command, notes=grid.notes, refused=results.refused)
    content.update(
        costs=_costs(results, older['costs']), records=[*kept, *results.records.values()]
    )
    write_json(file, content, indent=0)
    redraw(grid, target)


def _left_out(older: List[dict], results: page.Results) -> Tuple[List[dict], List[str]]:
    """Return the committed results that the grid still wants and that are not here.

    Returns:
        results of weights that are missing here, so that their settings cannot be compared; and the
        names of the others.
    """
    grid, found = results.grid, {}
    searches, points = {run.name: run for run in grid.search()}, list(grid.points())
    for of in older:
        if 'metrics' not in of or of['values'] not in points:
            continue
        run = searches.get(of['run']) or grid.run(of['values'], of['seed'], of['rate'])
        if run.name == of['run'] and (not run.has_weights() or run.settings() == of['settings']):
            found[run.name] = of, run
    both = {**{name: of for name, (of, _) in found.items()}, **results.records}
    chosen = page.Results(grid, both, results.refused).runs
    wanted = {run.name for run in (*searches.values(), *chosen)}
    left = [
        pair
        for name, pair in found.items()
        if name in wanted and 'metrics' not in results.records.get(name, {})
    ]
    kept = [of for of, run in left if not run.has_weights()]
    return kept, [of['run'] for of, run in left if run.has_weights()]


def _costs(results: page.Results, older: Dict[str, dict]) -> Dict[str, dict]:
    """Return the costs that are here, or else the committed ones of models that did not change.

    Raises:
        GridError: some models are measured here, and others in ``docs/studies`` alone.
    """
    runs = {run.point: run for run in map(results.grid.run, results.grid.points())}
    valid = {
        point: older[point]
        for point, run in runs.items()
        if older.get(point, {}).get('settings') == run.settings(weights=False)
    }
    if not results.costs:
        return {**valid, 'facts': older['facts']} if valid else {}
    lost = [point for point in valid if point not in results.costs]
    if lost:
        raise GridError(
            f'--docs would drop the costs of {len(lost)} models ({shorten(lost)}): measure all in '
            'one go with --costs'
        )
    return results.costs


def redraw(grid: Grid, target: Path) -> None:
    """Write tables and pictures of the records in ``docs/studies`` into a page of ``docs/``.

    Raises:
        GridError: there are no records, or the page has no place for them.
    """
    file = COMMITTED / f'{grid.name}.json'
    if not file.is_file():
        raise GridError(f'there is no docs/studies/{file.name} yet: run the study, then --docs')
    text = page.replaced(target.read_text(), grid, committed(grid, file))
    draw(published(grid, file), IMAGES, f'{grid.name}_', sha256_of(file))
    target.write_text(text)
    console.print(f'Written: {target}')


def published(grid: Grid, file: Path) -> page.Results:
    """Return the results that a file of ``docs/studies`` has."""
    content = json.loads(file.read_text())
    grid = replace(grid, command=content['command'], notes=content['notes'])
    found = {record['run']: record for record in content['records']}
    return page.Results(grid, found, content['refused'], content['costs'])


def committed(grid: Grid, file: Path) -> List[str]:
    """Return tables and pictures of the records in ``docs/studies``."""
    results = published(grid, file)
    return [*page.table(results), *pictures(results, f'images/{grid.name}_')]


def draw(results: page.Results, folder: Path, prefix: str, source: str = '') -> List[str]:
    """Draw the pictures of a study and return the lines that show them.

    Args:
        results: the study.
        folder: folder of the pictures.
        prefix: of their names.
        source: sha256 of the file of records, which the pictures keep as text ``Source``.
    """
    lines = pictures(results, prefix)
    for chart in results.grid.page.get('charts', []) if lines else []:
        metadata = dict(Source=source) if source else None
        charts.draw(results, chart).savefig(folder / f'{prefix}{chart}.png', metadata=metadata)
    return lines


def pictures(results: page.Results, prefix: str) -> List[str]:
    """Return the lines that show the pictures, none without a result."""
    if not any('metrics' in results.records.get(run.name, {}) for run in results.runs):
        return []
    return [
        line
        for chart in results.grid.page.get('charts', [])
        for line in ('', f'![{results.grid.title}: {chart}]({prefix}{chart}.png)')
    ]


def conduct(grid: Grid, folder: Path, args: argparse.Namespace, target: Path) -> int:
    """Run a study, or what the arguments ask for, and return the exit code.

    Args:
        grid: the study.
        folder: its folder.
        args: see :func:`add_arguments`.
        target: page of ``docs/`` for ``--docs``.
    """
    if args.redraw:
        redraw(grid, target)
        return 0
    session = Session(grid, folder.resolve())
    if args.committed:
        session.take_committed()
    if args.docs:
        publish(session.results(), target)
        return 0
    if args.costs:
        session.measure()
    else:
        session.train(args.jobs, args.weights)
    session.write()
    if session.failed:
        console.print(f'failed: {", ".join(session.failed)}', style='red', soft_wrap=True)
    return int(bool(session.failed))
