"""Tables of a study from its records."""

import json
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, List, Sequence, Union

from benchmarks import tables
from benchmarks.machine import CHANGED

from . import records as recorded
from .costs import COSTS, CostColumn
from .grid import COST, Grid, GridError, Metric, choosing_score, chosen_rates, score

END = '<!-- end of study -->'
COSTS_FILE = 'costs.json'
FACTS = ('machine', 'versions')
Quantity = Union[Metric, CostColumn]


@dataclass
class Results:
    """Content of the page.

    Attributes:
        grid: the study.
        records: records by name of the run.
        refused: reasons of missing runs, by point.
        costs: costs measured on an idle machine, by point; otherwise those of the runs are shown.
    """

    grid: Grid
    records: Dict[str, dict]
    refused: Dict[str, str] = field(default_factory=dict)
    costs: Dict[str, dict] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rates = chosen_rates(self.grid, self.records)
        chosen = {point: rate for point, (rate, _) in self.rates.items()}
        self.runs = [run for run in self.grid.runs(chosen) if run.point not in self.refused]

    def values(self, quantity: Quantity, **names: str) -> List[float]:
        """Return the numbers of all seeds of the points with these names on some axes."""
        runs = [run for run in self.runs if names.items() <= run.values.items()]
        if isinstance(quantity, CostColumn):
            return [spread[0] for spread in self.spreads(quantity, **names)]
        found = [self.records.get(run.name, {}) for run in runs]
        numbers = [score(of, quantity.split, quantity.key) for of in found]
        return [quantity.factor * number for number in numbers if number is not None]

    def spreads(self, quantity: CostColumn, **names: str) -> List[List[float]]:
        """Return median and quartiles of a cost; what has no quartiles has one number."""
        runs = [run for run in self.runs if names.items() <= run.values.items()]
        found = [self.costs[run.point] for run in runs if run.point in self.costs]
        found = found or [self.records.get(run.name, {}) for run in runs]
        measured = [of[quantity.key] for of in found if 'params' in of]
        return [
            [quantity.factor * number for number in (of if isinstance(of, list) else [of])]
            for of in measured
        ]

    def cell(self, quantity: Quantity, **names: str) -> str:
        """Return a cell: mean, deviation and number of seeds, or why there is no number."""
        points = {run.point for run in map(self.grid.run, self._points(names))}
        if points <= {*self.refused}:
            return 'refused'
        values, digits = self.values(quantity, **names), quantity.digits
        if not values:
            runs = [run.name for run in self.runs if names.items() <= run.values.items()]
            found = [self.records[name] for name in runs if name in self.records]
            if any('error' in record for record in found):
                return 'failed'
            return 'none' if found else 'not run'
        if isinstance(quantity, CostColumn):
            return f'{statistics.median(values):.{digits}f}'
        wanted = sum(names.items() <= run.values.items() for run in self.runs)
        of = f'{len(values)} of {wanted}' if len(values) < wanted else f'{len(values)}'
        spread = f' ± {deviation(values):.{digits}f}' if len(values) > 1 else ''
        return f'{statistics.mean(values):.{digits}f}{spread} ({of})'

    def missing(self) -> List[str]:
        """Return the points of which no run of the result is recorded."""
        begun = {run.point for run in self.runs if run.name in self.records}
        return [
            point for point in dict.fromkeys(run.point for run in self.runs) if point not in begun
        ]

    def _points(self, names: Dict[str, str]) -> List[Dict[str, str]]:
        return [values for values in self.grid.points() if names.items() <= values.items()]


def deviation(values: Sequence[float]) -> float:
    """Return the standard deviation of a sample (n - 1), or 0 for one value."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def load(grid: Grid, folder: Path, wanted: Dict[str, str], refused: Dict[str, str]) -> Results:
    """Return the results that a folder has; costs of models with other settings are left out."""
    file = folder / COSTS_FILE
    found = json.loads(file.read_text()) if file.is_file() else {}
    runs = {run.point: run for run in map(grid.run, grid.points())}
    costs = {
        point: cost
        for point, cost in found.items()
        if point in runs
        and 'settings' in cost
        and cost['settings'] == runs[point].settings(weights=False)
    }
    if costs:
        costs['facts'] = found['facts']
    return Results(grid, recorded.read(folder / recorded.FILE, wanted), refused, costs)


def table(results: Results) -> List[str]:
    """Return the page in Markdown: tables, gaps with their reasons, rates and facts."""
    grid, lines = results.grid, []
    axis = grid.page.get('tables')
    for name in grid.axes[axis] if axis else ['']:
        several = axis and len(grid.axes[axis]) > 1
        heading = [f'## {title(grid, axis, name)}', ''] if axis and several else []
        for part in filter(None, _tables(results, {axis: name} if axis else {})):
            lines += [*heading, *part, '']
            heading = []
    has_times = any('ms an image' in line for line in lines)
    has_times |= bool({'latency', 'columns'} & {*grid.page.get('charts', ())})
    made_with = _made_with(results, has_times)
    return [*lines, *_rates(results), *_gaps(results), '', *made_with]


def title(grid: Grid, axis: str, name: str) -> str:
    """Return the title of a name on an axis."""
    return grid.axes[axis][name].get('title', name)


def _tables(results: Results, fixed: Dict[str, str]) -> List[List[str]]:
    grid, rows = results.grid, results.grid.page['rows']
    columns = grid.page.get('columns')
    known: Dict[str, Quantity] = {of.name: of for of in (*grid.metrics, *COSTS)}
    if not columns:
        names = grid.page.get('quantities', known)
        heads = [known[name] for name in names]
        if len(grid.axes[rows]) == 1:  # quantities below each other
            (row,) = grid.axes[rows]
            cells = [[of.name, results.cell(of, **fixed, **{rows: row})] for of in heads]
            done = {cell for _, cell in cells} != {'not run'}
            return [tables.markdown(['', title(grid, rows, row)], cells)] if done else []
        body = [
            [results.cell(of, **fixed, **{rows: row}) for of in heads] for row in grid.axes[rows]
        ]
        return [_table(grid, rows, [of.name for of in heads], body)]
    parts = []
    shown = grid.page.get('quantities', [grid.metrics[0].name])
    for quantity in shown:
        names = [title(grid, columns, name) for name in grid.axes[columns]]
        heads = [f'{name}, {quantity}' for name in names]
        body = [
            [results.cell(known[quantity], **fixed, **{rows: row, columns: column})
             for column in grid.axes[columns]]
            for row in grid.axes[rows]
        ]  # fmt: skip
        if len(shown) == 1:
            heads += [of.name for of in COSTS]
            for row, cells in zip(grid.axes[rows], body):
                cells += [results.cell(of, **fixed, **{rows: row}) for of in COSTS]
        parts.append(_table(grid, rows, heads, body))
    return parts


def _table(grid: Grid, rows: str, heads: List[str], body: List[List[str]]) -> List[str]:
    names = (title(grid, rows, row) for row in grid.axes[rows])
    lines = [[name, *cells] for name, cells in zip(names, body) if {*cells} != {'not run'}]
    return tables.markdown([rows, *heads], lines) if lines else []


def _rates(results: Results) -> List[str]:
    """Return the table of the search for the learning rates."""
    grid, metric = results.grid, results.grid.metrics[0]
    if not grid.learning_rates:
        return []
    heads = ' | '.join(f'{rate:g}' for rate in grid.learning_rates)
    lines = [f'Learning rates, {metric.name} on the validation split with seed 0:', '']
    lines += [f'| | {heads} | chosen |', '| --- |' + ' ---: |' * (len(grid.learning_rates) + 1)]
    for values in grid.points():
        point = '_'.join(values.values())
        chosen, tried = results.rates.get(point, (None, []))
        by_rate = {of['rate']: choosing_score(grid, of) for of in tried}
        cells = [
            'no result' if number is None else f'{metric.factor * number:.{metric.digits}f}'
            for number in map(by_rate.get, grid.learning_rates)
        ]
        names = ', '.join(title(grid, axis, name) for axis, name in values.items())
        lines.append(tables.row([names, *cells, '' if chosen is None else f'{chosen:g}']))
    return [*lines, '']


def _gaps(results: Results) -> List[str]:
    """Return one line per gap of the tables, and the notes of the grid."""
    reasons: Dict[str, List[str]] = {}
    for point, why in results.refused.items():
        reasons.setdefault(why.split(';')[0], []).append(f'`{point}`')
    lines = [f'- Refused: {", ".join(points)}: {why}.' for why, points in reasons.items()]
    missing = results.missing()
    if missing:
        lines.append(f'- Not run yet: {", ".join(f"`{point}`" for point in missing)}.')
    for name, record in results.records.items():
        if 'error' in record:
            lines.append(f'- Failed: `{name}`: {record["error"]}')
    return [*lines, *(f'- {note}' for note in results.grid.notes)]


def _made_with(results: Results, has_times: bool) -> List[str]:
    done = [record for record in results.records.values() if 'metrics' in record]
    # `wall` is of the last session of a run alone.
    minutes = sum(max(record['wall'], record.get('seconds', 0)) for record in done) / 60
    lines = [
        f'- {len(done)} runs, {minutes:.0f} minutes of one process: {minutes / 120:.1f} hours '
        'with `--jobs 2`.'
    ]
    sessions = [record['metrics']['train'] for record in done if 'train' in record['metrics']]
    if sessions:
        steps = sorted({of['iterations'] for of in sessions})
        lines.append(f'- Iterations: {", ".join(map(str, steps))}.')
    for fact in FACTS if done else ():
        values = '; '.join(sorted({record[fact] for record in done}))
        lines.append(f'- {fact.capitalize()}: {values}.')
    sessions_of = [record['commit'].split('; ') for record in done]
    commits = {one.removesuffix(CHANGED)[:10] for of in sessions_of for one in of}
    changed = sum(any(CHANGED in one for one in of) for of in sessions_of)
    note = f'; {changed} of the runs with uncommitted changes' if changed else ''
    lines += [f'- Commit: {", ".join(sorted(commits))}{note}.'] if done else []
    if has_times:
        batch = {**COST, **results.grid.cost}['batch']
        lines.append(
            f'- Times and memory: float32, batches of {batch}, one thread, {_measured(results)}.'
        )
    return [*lines, f'- Command: `{results.grid.command}`.']


def _measured(results: Results) -> str:
    """Return how the costs were measured, in words."""
    if not results.costs:
        return 'beside a training'
    facts = results.costs['facts']
    text = f'all models in turns on an idle {facts["machine"]}, commit {facts["commit"][:10]}'
    points = dict.fromkeys(run.point for run in results.runs if run.name in results.records)
    rest = [f'`{point}`' for point in points if point not in results.costs]
    return text + (f'; those of {", ".join(rest)} beside a training' if rest else '')


def begin(grid: Grid) -> str:
    """Return the line of a page after which the study stands."""
    return f'<!-- study: {grid.name} -->'


def replaced(text: str, grid: Grid, lines: List[str]) -> str:
    """Return a page with these lines in the place of the study.

    Raises:
        GridError: the page has no such place, or two.
    """
    try:
        return tables.replaced(text, begin(grid), END, lines)
    except ValueError as error:
        raise GridError(str(error)) from None
