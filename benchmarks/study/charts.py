"""Pictures of a study from its records."""

import statistics
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING, Callable, Dict, Iterator, List, Optional, Tuple

from mmlinattn.analysis.rank import MATRICES

from .checks import RANK_SPLITS
from .costs import COSTS
from .grid import GridError
from .page import Results, deviation, title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from mmlinattn.engine.report.curves import Curves

LEAST_WIDTH = 8  # minimal width of a panel, in points: it keeps small differences small
MILLISECONDS = next(cost for cost in COSTS if cost.key == 'ms')


def draw(results: Results, chart: str) -> 'Figure':
    """Return a picture.

    Args:
        results: the study.
        chart: ``'ranking'``, ``'latency'``, ``'curves'``, ``'columns'``, ``'spectra'``,
            ``'layers'`` or ``'ring_weights'``.

    Raises:
        GridError: there are no ring weights, as no training had RippleWeightsHook.
    """
    from matplotlib.figure import Figure

    from mmlinattn.engine.report.curves import draw_ring_weights

    if chart == 'ring_weights':
        means, deviations = _series_of_seeds(results)
        rings = draw_ring_weights(means, 'iteration', deviations)
        if rings is None:
            raise GridError("page.charts: 'ring_weights' needs RippleWeightsHook in custom_hooks")
        return rings
    panels = [] if chart in WIDE else _panels(results)
    width, height = 2.8 + 3.2 * max(1, len(panels)), 4.2
    if chart == 'ranking':
        height = 1.1 + 0.27 * len(results.grid.axes[results.grid.page['rows']])
    if chart in WIDE:
        width = 12.0
    figure = Figure(figsize=(width, height), dpi=110)
    if chart in WIDE:
        WIDE[chart](results, list(figure.subplots(1, 3)))
    else:
        share = chart == 'ranking'
        for axes, (heading, fixed) in zip(
            figure.subplots(1, len(panels), sharey=share, squeeze=False)[0], panels
        ):
            CHARTS[chart](results, axes, fixed)
            axes.set_title(heading, fontsize=9)
    if figure.axes[-1].get_legend_handles_labels()[1]:
        figure.axes[-1].legend(fontsize=6, loc='center left', bbox_to_anchor=(1.01, 0.5))
    for axes in figure.axes:
        axes.tick_params(labelsize=8)
        axes.grid(color='0.9')
        axes.set_axisbelow(True)
    figure.tight_layout()
    return figure


def styles(line: str = '') -> Iterator[Dict[str, str]]:
    """Yield a colour and a marker for each row, and dashes if ``line`` is ``'-'``.

    So 24 rows stay apart.
    """
    for marker, dashes in cycle(zip('osD^vP', ('-', '--', ':') * 2)):
        for number in range(8):
            yield dict(color=f'C{number}', marker=marker, linestyle=line and dashes)


def _panels(results: Results) -> List[Tuple[str, Dict[str, str]]]:
    """Return heading and names of each panel: one per name on every axis but the rows."""
    grid, found = results.grid, {}
    for values in grid.points():
        fixed = {axis: name for axis, name in values.items() if axis != grid.page['rows']}
        heading = ', '.join(title(grid, axis, name) for axis, name in fixed.items())
        found[heading] = fixed
    return list(found.items())


def _ranking(results: Results, axes: 'Axes', fixed: Dict[str, str]) -> None:
    """Plot the first metric of every seed, the rows sorted by their mean over all panels."""
    grid, metric = results.grid, results.grid.metrics[0]
    rows = grid.page['rows']

    def mean(name: str) -> float:
        values = results.values(metric, **{rows: name})
        return statistics.mean(values) if values else 0.0

    names = sorted(grid.axes[rows], key=mean)
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
    """Plot the first metric against milliseconds, with the deviation over the seeds."""
    grid, metric = results.grid, results.grid.metrics[0]
    rows = grid.page['rows']
    for name, style in zip(grid.axes[rows], styles()):
        values = results.values(metric, **fixed, **{rows: name})
        times = results.values(MILLISECONDS, **fixed, **{rows: name})
        if values and times:
            point = statistics.median(times), statistics.mean(values)
            spreads = results.spreads(MILLISECONDS, **fixed, **{rows: name})
            # Quartiles of one measurement; else the range over the seeds.
            low, *_, high = sorted(spreads[0] if len(spreads) == 1 else times)
            axes.errorbar(
                *point, yerr=deviation(values), xerr=[[point[0] - low], [high - point[0]]],
                capsize=2, lw=1, color=style['color'],
            )  # fmt: skip
            axes.plot(*point, markersize=6, label=title(grid, rows, name), **style)
    axes.set_xlabel(MILLISECONDS.name, fontsize=8)
    axes.set_ylabel(metric.name, fontsize=8)


def _curves(results: Results, axes: 'Axes', fixed: Dict[str, str]) -> None:
    """Plot the loss of the training, mean over the seeds."""
    rows = results.grid.page['rows']
    for name, style in zip(results.grid.axes[rows], styles('-')):
        wanted = {**fixed, rows: name}.items()
        found = [
            dict(results.records[run.name]['curve'])
            for run in results.runs
            if wanted <= run.values.items() and 'curve' in results.records.get(run.name, {})
        ]
        steps = sorted(set.intersection(*map(set, found))) if found else []
        if steps:
            means = [statistics.mean(curve[step] for curve in found) for step in steps]
            axes.plot(
                steps, means, lw=1, markersize=3, markevery=0.2,
                label=title(results.grid, rows, name), **style,
            )  # fmt: skip
    axes.set_yscale('log')
    axes.set_xlabel('iteration', fontsize=8)
    axes.set_ylabel('loss', fontsize=8)


def _series_of_seeds(results: Results) -> Tuple['Curves', 'Curves']:
    """Return what hooks have logged: means and deviations of the seeds."""
    found = [results.records.get(run.name, {}) for run in results.runs]
    by_seed = [
        {name: dict(series) for name, series in of['series'].items()}
        for of in found
        if 'metrics' in of and 'series' in of
    ]
    means, deviations = {}, {}
    for name in by_seed[0] if by_seed else ():
        for step in sorted(set.intersection(*(set(of[name]) for of in by_seed))):
            numbers = [of[name][step] for of in by_seed]
            means.setdefault(name, []).append((step, statistics.mean(numbers)))
            deviations.setdefault(name, []).append((step, deviation(numbers)))
    return means, deviations


def _columns(results: Results, panels: List['Axes']) -> None:
    """Plot the first metric, time and memory against the names on the axis of the columns."""
    grid = results.grid
    rows, columns = grid.page['rows'], grid.page['columns']
    for axes, quantity in zip(panels, (grid.metrics[0], *COSTS[-2:])):
        for name, style in zip(grid.axes[rows], styles('-')):
            points = [
                (x, results.values(quantity, **{rows: name, columns: column}))
                for x, column in enumerate(grid.axes[columns])
            ]
            points = [(x, values) for x, values in points if values]
            if points:
                axes.errorbar(
                    [x for x, _ in points], [statistics.mean(values) for _, values in points],
                    yerr=[deviation(values) for _, values in points],
                    lw=1, capsize=2, markersize=4, label=title(grid, rows, name), **style,
                )  # fmt: skip
        axes.set_xticks(range(len(grid.axes[columns])), [*grid.axes[columns]])
        axes.set_xlabel(columns, fontsize=8)
        axes.set_ylabel(quantity.name, fontsize=8)
        if quantity is not grid.metrics[0]:
            axes.set_yscale('log')


def _spectra(results: Results, panels: List['Axes']) -> None:
    """Plot the singular values of each matrix."""
    _matrices(results, panels, 'spectra', statistics.median)
    for axes in panels:
        axes.set_xlabel('number of the singular value', fontsize=8)
        axes.set_ylabel('over the largest', fontsize=8)


def _layers(results: Results, panels: List['Axes']) -> None:
    """Plot the rank of each matrix by layer, with the deviation over the seeds."""
    from matplotlib.ticker import LogLocator, StrMethodFormatter

    _matrices(results, panels, 'ranks', statistics.mean, deviation)
    for axes in panels:
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
        axes.yaxis.set_major_formatter(StrMethodFormatter('{x:g}'))
        axes.minorticks_off()
        axes.set_xlabel('layer', fontsize=8)
        axes.set_ylabel('numerical rank', fontsize=8)


def _matrices(
    results: Results,
    panels: List['Axes'],
    field: str,
    summary: Callable,
    spread: Optional[Callable] = None,
) -> None:
    """Plot a list of numbers of each matrix over the seeds: trained, and dotted at the start."""
    rows = results.grid.page['rows']
    for axes, (matrix, words) in zip(panels, MATRICES.items()):
        for name, style in zip(results.grid.axes[rows], styles('-')):
            runs = [run for run in results.runs if run.values[rows] == name]
            found = [results.records.get(run.name, {}).get(field, {}) for run in runs]
            for split, line in zip(RANK_SPLITS, (':', '-')):
                here = [of[split][matrix] for of in found if matrix in of.get(split, {})]
                numbers = [*zip(*here)]
                if numbers:
                    draw = axes.plot
                    if spread:
                        draw = partial(axes.errorbar, yerr=[*map(spread, numbers)], capsize=2)
                    label = title(results.grid, rows, name) if line == '-' else None
                    draw(
                        range(1, len(numbers) + 1), [*map(summary, numbers)], lw=1, linestyle=line,
                        label=label, color=style['color'],
                    )  # fmt: skip
        axes.set_yscale('log')
        axes.set_title(', '.join(words), fontsize=9)


CHARTS: Dict[str, Callable] = dict(ranking=_ranking, latency=_latency, curves=_curves)
# Those with three panels.
WIDE: Dict[str, Callable] = dict(columns=_columns, spectra=_spectra, layers=_layers)
