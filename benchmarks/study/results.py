"""Tables and pictures of a study from its records."""

import json
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Dict, List, Union

from benchmarks.machine import CHANGED
from benchmarks.report import markdown

from .costs import COSTS, CostColumn
from .grid import CHOOSING, Grid, GridError, Metric, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CHARTS = ('ranking', 'latency')
LEAST_WIDTH = 8  # minimal width of a panel, in points: it keeps small differences small
MILLISECONDS = next(cost for cost in COSTS if cost.key == 'ms')
Quantity = Union[Metric, CostColumn]


def chosen_rates(grid: Grid, records: Dict[str, dict]) -> Dict[str, float]:
    """Return the learning rate of each point with the best first metric on the split ``val``.

    A point whose searches have all failed is left out.
    """
    found, key = {}, grid.numbers[0].key
    for values in grid.points():
        runs = [run for run in grid.search(values) if 'metrics' in records.get(run.name, {})]
        if runs:
            best = max(runs, key=lambda run: records[run.name]['metrics'][CHOOSING][key])
            found[best.point] = best.rate
    return found


@dataclass
class Results:
    """Content of the page.

    Args:
        grid: the study.
        records: records by name of the run.
        costs: costs measured on an idle machine by point, and ``facts``; empty if there are none.
    """

    grid: Grid
    records: Dict[str, dict]
    costs: Dict[str, dict] = field(default_factory=dict)

    def runs(self, **names: str) -> List[Run]:
        """Return the runs of the result with these names on some axes."""
        runs = self.grid.runs(chosen_rates(self.grid, self.records))
        return [run for run in runs if names.items() <= run.values.items()]

    def values(self, quantity: Quantity, **names: str) -> List[float]:
        """Return the numbers of all seeds, or the cost, of the points with these names."""
        runs = self.runs(**names)
        if isinstance(quantity, CostColumn):
            found = {run.point: self.costs[run.point] for run in runs if run.point in self.costs}
            numbers = [of[quantity.key] for of in found.values()]
            return [quantity.factor * (of[0] if isinstance(of, list) else of) for of in numbers]
        metrics = [self.records.get(run.name, {}).get('metrics', {}) for run in runs]
        scores = [of.get(quantity.split, {}).get(quantity.key) for of in metrics]
        return [quantity.factor * number for number in scores if number is not None]

    def cell(self, quantity: Quantity, **names: str) -> str:
        """Return a cell: mean, deviation and number of seeds, or why there is no number."""
        points = ['_'.join(of.values()) for of in self.grid.points() if names.items() <= of.items()]
        if {*points} <= {*self.grid.refused}:
            return 'refused'
        values, digits = self.values(quantity, **names), quantity.digits
        if not values:
            found = [self.records.get(run.name, {}) for run in self.runs(**names)]
            return 'failed' if any('error' in of for of in found) else 'not run'
        if isinstance(quantity, CostColumn):
            return f'{statistics.median(values):.{digits}f}'
        spread = f' ± {deviation(values):.{digits}f}' if len(values) > 1 else ''
        return f'{statistics.mean(values):.{digits}f}{spread} ({len(values)})'


def deviation(values: List[float]) -> float:
    """Return the standard deviation of a sample (n - 1), or 0 for one value."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def committed(grid: Grid, file: Path) -> Results:
    """Return the results in ``docs/studies/NAME.json``; the grid gets its command and refusals."""
    content = json.loads(file.read_text())
    grid.command, grid.refused = content['command'], content['refused']
    return Results(grid, {record['run']: record for record in content['records']}, content['costs'])


def page(results: Results, images: Path) -> str:
    """Return the text of ``docs/studies/NAME.md``, and draw its pictures in ``docs/images``."""
    lines = [f'# {results.grid.title}', '', '[What it shows](../studies.md)', '', *table(results)]
    return '\n'.join([*lines, *draw(results, images, f'{results.grid.name}_'), ''])


def table(results: Results) -> List[str]:
    """Return the results in Markdown: tables, gaps with their reasons, rates and facts."""
    lines = [line for part in _tables(results) for line in (*part, '')]
    gaps = _refused_and_failed(results)
    return [*lines, *_rates(results), *gaps, *[''] * bool(gaps), *_made_with(results)]


def title(grid: Grid, axis: str, name: str) -> str:
    """Return the title of a name on an axis."""
    return grid.axes[axis][name].get('title', name)


def _tables(results: Results) -> List[List[str]]:
    """Return a table of all quantities, or with an axis of columns one for each quantity."""
    grid, rows = results.grid, results.grid.page['rows']
    columns, groups = map(grid.page.get, ('columns', 'groups'))
    costs = COSTS if results.costs else ()
    known: Dict[str, Quantity] = {of.name: of for of in (*grid.numbers, *costs)}
    shown = [known[name] for name in grid.page.get('quantities', known) if name in known]
    # Heading, quantity and name on the axis of columns of each column of each table.
    parts = [[(of.name, of, {}) for of in shown]]
    if columns:
        metrics = [of for of in shown if isinstance(of, Metric)]
        more = [part for part in parts[0] if part[1] not in metrics] or [
            (of.name, of, {}) for of in costs
        ]
        names = {name: title(grid, columns, name) for name in grid.axes[columns]}
        parts = [
            [
                *((f'{head}, {of.name}', of, {columns: name}) for name, head in names.items()),
                *(more if len(metrics) == 1 else []),
            ]
            for of in metrics
        ]
    if groups:
        parts = [
            [
                (f'{title(grid, groups, name)}: {heading}', of, {groups: name, **at})
                for name in grid.axes[groups]
                for heading, of, at in part
            ]
            for part in parts
        ]
    return [
        markdown(
            [rows, *(heading for heading, _, _ in part)],
            [
                [
                    title(grid, rows, name),
                    *(results.cell(of, **{rows: name}, **at) for _, of, at in part),
                ]
                for name in grid.axes[rows]
            ],
        )
        for part in parts
    ]


def _rates(results: Results) -> List[str]:
    """Return the chosen learning rates in one line, the most frequent one first."""
    grid = results.grid
    rates: Dict[float, List[str]] = {}
    chosen = chosen_rates(grid, results.records) if grid.learning_rates else {}
    for values in grid.points() if chosen else ():
        point = grid.search(values)[0].point
        if point in chosen:
            name = ', '.join(title(grid, axis, name) for axis, name in values.items())
            rates.setdefault(chosen[point], []).append(f'`{name}`')
    if not rates:
        return []
    (most, _), *others = sorted(rates.items(), key=lambda item: -len(item[1]))
    found = [f'{most:g}', *(f'{rate:g} for {", ".join(names)}' for rate, names in others)]
    words = 'Learning rates with the best score on the validation split, seed 0'
    return [f'{words}: {"; ".join(found)}.', '']


def _refused_and_failed(results: Results) -> List[str]:
    """Return a line for each refused or failed cell of the tables, and the notes of the grid."""
    reasons: Dict[str, List[str]] = {}
    for point, why in results.grid.refused.items():
        reasons.setdefault(why.split(';')[0], []).append(f'`{point}`')
    lines = [f'- Refused: {", ".join(points)}: {why}.' for why, points in reasons.items()]
    errors = {name: of['error'] for name, of in results.records.items() if 'error' in of}
    lines += [f'- Failed: `{name}`: {why}' for name, why in errors.items()]
    return [*lines, *(f'- {note}' for note in results.grid.notes)]


def _made_with(results: Results) -> List[str]:
    found = [record['commit'] for record in results.records.values() if 'metrics' in record]
    lines = []
    if found:
        commits = ', '.join(sorted({commit.removesuffix(CHANGED)[:10] for commit in found}))
        changed = sum(CHANGED in commit for commit in found)
        note = f'; {changed} of the runs with uncommitted changes' if changed else ''
        lines.append(f'- Commit: {commits}{note}.')
    if results.costs:
        facts, batch = results.costs['facts'], results.grid.cost['batch']
        lines.append(
            f'- Times and memory: float32, batches of {batch}, one thread, all models in turns on '
            f'an idle {facts["machine"]}, commit {facts["commit"][:10]}.'
        )
    return [*lines, f'- Command: `{results.grid.command}`.']


def draw(results: Results, folder: Path, prefix: str) -> List[str]:
    """Draw the pictures of a study in a folder, and return the lines that show them."""
    lines = []
    for chart in results.grid.page.get('charts', ()):
        if chart not in CHARTS:
            raise GridError(f'page.charts: {chart!r} is unknown; known are {", ".join(CHARTS)}')
        if chart == 'latency' and not results.costs:
            continue  # needs --costs
        path = folder / f'{prefix}{chart}.png'
        figure(results, chart).savefig(path)
        lines += ['', f'![{results.grid.title}: {chart}]({"../images/" * bool(prefix)}{path.name})']
    return lines


def figure(results: Results, chart: str) -> 'Figure':
    """Return a picture with a panel per name on every axis but the rows."""
    from matplotlib.figure import Figure

    grid, rows = results.grid, results.grid.page['rows']
    panels: Dict[str, Dict[str, str]] = {}
    for values in grid.points():
        fixed = {axis: name for axis, name in values.items() if axis != rows}
        panels[', '.join(title(grid, axis, name) for axis, name in fixed.items())] = fixed
    height = 1.1 + 0.27 * len(grid.axes[rows]) if chart == 'ranking' else 4.2
    found = Figure(figsize=(2.8 + 3.2 * len(panels), height), dpi=110, layout='tight')
    columns = found.subplots(1, len(panels), sharey=chart == 'ranking', squeeze=False)[0]
    for axes, (heading, fixed) in zip(columns, panels.items()):
        (_ranking if chart == 'ranking' else _latency)(results, axes, fixed)
        axes.set_title(heading, fontsize=9)
        axes.tick_params(labelsize=8)
        axes.grid(color='0.9')
        axes.set_axisbelow(True)
    return found


def _ranking(results: Results, axes: 'Axes', fixed: Dict[str, str]) -> None:
    """Plot the first metric of every seed, the rows sorted by their mean over all panels."""
    grid, metric = results.grid, results.grid.numbers[0]
    rows = grid.page['rows']
    means = {name: results.values(metric, **{rows: name}) or [0.0] for name in grid.axes[rows]}
    names = sorted(means, key=lambda name: statistics.mean(means[name]))
    for y, name in enumerate(names):
        values = results.values(metric, **fixed, **{rows: name})
        if values:
            axes.plot(values, [y] * len(values), '.', color='0.65', markersize=5)
            axes.errorbar(
                statistics.mean(values), y, xerr=deviation(values),
                fmt='o', color='tab:blue', markersize=5, capsize=2, lw=1.2,
            )  # fmt: skip
        else:
            axes.text(
                0.03, y, results.cell(metric, **fixed, **{rows: name}), va='center', fontsize=7,
                color='0.5', transform=axes.get_yaxis_transform(),
            )  # fmt: skip
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, high - LEAST_WIDTH), high + LEAST_WIDTH / 20)
    axes.set_xlabel(metric.name, fontsize=8)
    axes.set_yticks(range(len(names)), [title(grid, rows, name) for name in names])
    axes.set_ylim(-0.6, len(names) - 0.4)


def _latency(results: Results, axes: 'Axes', fixed: Dict[str, str]) -> None:
    """Plot the first metric of each row against milliseconds; ``page.named`` rows have names."""
    grid, metric = results.grid, results.grid.numbers[0]
    rows = grid.page['rows']
    named = grid.page.get('named', grid.axes[rows])
    for name in grid.axes[rows]:
        values = results.values(metric, **fixed, **{rows: name})
        times = results.values(MILLISECONDS, **fixed, **{rows: name})
        if values and times:
            point = times[0], statistics.mean(values)
            colour = 'tab:blue' if name in named else '0.75'
            axes.errorbar(*point, yerr=deviation(values), capsize=2, lw=1, fmt='o', color=colour,
                          markersize=5, zorder=2 + (name in named))  # fmt: skip
            if name in named:
                axes.annotate(title(grid, rows, name), point, (5, 4), fontsize=7,
                              textcoords='offset points')  # fmt: skip
    axes.margins(x=0.3)
    others = '; grey: other rows of the table' * (len(named) < len(grid.axes[rows]))
    axes.set_xlabel(MILLISECONDS.name + others, fontsize=8)
    axes.set_ylabel(metric.name, fontsize=8)
