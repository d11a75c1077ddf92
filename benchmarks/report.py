"""Results as JSON, Markdown and plots."""

import hashlib
import json
import re
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Dict, List, Optional, Sequence, Set, Tuple

from mmlinattn.utils import write_json

from .suite import Result, slopes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DOCS = Path(__file__).resolve().parent.parent / 'docs'
# Names of pages for baselines of records: of one case, or of all.
NAMES = {
    'retinanet: mmlinattn': 'RAVLT-T as released',
    'retinanet: RALA': 'RAVLT-T, RALA in all stages',
    'segformer-b0: mmlinattn': 'its own attention, this package',
    'segformer-b0: concatenation': 'its own, concatenated head',
    'segformer-b2: mmlinattn': 'its own attention, this package',
    'mmlinattn': 'this package',
    'channels first': 'layout of the release, rewritten',
    'channels first, SDPA': 'layout of the release, rewritten, SDPA',
}


def write(results: Sequence[Result], context: dict, folder: Path) -> List[Path]:
    """Write ``results.json`` and ``results.md``, and return their paths.

    Args:
        context: machine, versions, commit, command, settings, and ``plots``, False if there are to
            be none on the page; see ``run.py``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    record = dict(context, results=[asdict(result) for result in results])
    paths = [folder / 'results.json', folder / 'results.md']
    paths[0].write_text(json.dumps(record, indent=1) + '\n')
    paths[1].write_text('\n'.join([*shown('results', dict(record, plots=False)), '']))
    return paths


def _plotted(results: Sequence[Result], context: dict) -> List[List[Result]]:
    """Return the groups that have a plot: those with a result, unless there are to be none."""
    groups = [list(group) for _, group in groupby(results, _group)]
    shown = groups if context.get('plots', True) else []
    return [group for group in shown if any(not result.skipped for result in group)]


def publish(name: str, record: dict) -> None:
    """Write ``docs/benchmarks/NAME.json``, and the page and plots that show it.

    Args:
        record: ``command`` and other facts, and either ``results``, those of ``results.json``, or
            ``tables``, the arguments of :func:`number_table` by heading.
    """
    write_json(DOCS / 'benchmarks' / f'{name}.json', record, indent=1)
    redraw(name)


def redraw(name: str) -> None:
    """Write ``docs/benchmarks/NAME.md`` and the plots of ``docs/benchmarks/NAME.json``.

    Raises:
        FileNotFoundError: there is no such record.
    """
    draw(name, DOCS / 'images')
    (DOCS / 'benchmarks' / f'{name}.md').write_text('\n'.join([*published(name), '']))


def draw(name: str, folder: Path) -> None:
    """Draw the plots of ``docs/benchmarks/NAME.json``, with its sha256 as text ``Source``."""
    file = DOCS / 'benchmarks' / f'{name}.json'
    source = hashlib.sha256(file.read_bytes()).hexdigest()
    context, results = _parsed(json.loads(file.read_text()))
    for group in _plotted(results, context):
        path = folder / f'{name}_{_slug(group)}.png'
        plot(group).savefig(path, dpi=120, metadata=dict(Source=source))


def published(name: str) -> List[str]:
    """Return the lines of the page that shows ``docs/benchmarks/NAME.json``."""
    record = json.loads((DOCS / 'benchmarks' / f'{name}.json').read_text())
    title = f'# Benchmark {name}'
    return [title, '', '[What it compares](../benchmarks.md)', '', *shown(name, record)]


def shown(name: str, record: dict) -> List[str]:
    """Return the lines that show a record of :func:`publish`."""
    context, results = _parsed(record)
    several = context.pop('tables', {})
    lines = ['```shell', context.pop('command'), '```', '', _facts(context)]
    for heading, part in several.items():
        lines += ['', f'{heading}:', '', *number_table(**part)]
    for heading, part in _parts(results, context.pop('joined', False)).items():
        lines += ['', f'{heading}:', '', *table(part)]
        for group in _plotted(part, context):
            picture = f'../images/{name}_{_slug(group)}.png'
            lines += ['', f'![Time and memory, {_title(group)}]({picture})']
    return lines


def _parsed(record: dict) -> Tuple[dict, List[Result]]:
    """Return context and results of a record."""
    context = dict(record)
    return context, [_named(Result(**result)) for result in context.pop('results', [])]


def _named(result: Result) -> Result:
    """Return a result as pages show it: images as width x height, series by what they are."""
    name = NAMES.get(f'{result.case}: {result.baseline}', NAMES.get(result.baseline))
    size = 'x'.join(reversed(result.size.split('x'))) if result.kind == 'backbone' else result.size
    return replace(result, baseline=name or result.baseline, size=size)


def markdown(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> List[str]:
    """Return the lines of a table in Markdown whose first column is left-aligned."""
    rows = [[cell.replace('|', '/') for cell in row] for row in (columns, *lines)]
    rows.insert(1, ['---', *['---:'] * (len(columns) - 1)])
    return [f'| {" | ".join(row)} |' for row in rows]


def number_table(
    columns: Sequence[str], lines: Sequence[Sequence[object]], percent: Sequence[int] = ()
) -> List[str]:
    """Return a table of measured numbers: three digits of a fraction, all of an integer.

    Args:
        percent: indices of the columns that are shares.

    Example:
        >>> number_table(['', 'MiB', 'ms', 'share'], [['a', 16242, 0.4416, 0.808]], [3])[2]
        '| a | 16,242 | 0.442 | 81% |'
    """

    def cell(value: object, is_share: bool) -> str:
        if isinstance(value, float):
            return f'{value:.0%}' if is_share else digits(value)
        return f'{value:,}' if isinstance(value, int) else str('' if value is None else value)

    return markdown(
        columns, [[cell(value, i in percent) for i, value in enumerate(line)] for line in lines]
    )


def digits(value: float) -> str:
    """Return a positive number with three digits, a large one without decimals."""
    return f'{value:,.0f}' if value >= 99.95 else f'{value:#.3g}'


def _group(result: Result) -> tuple:
    return result.case, result.mode, result.batch


def _slug(group: Sequence[Result]) -> str:
    return re.sub(r'\W+', '-', '-'.join(map(str, _group(group[0]))))


def _parts(results: Sequence[Result], joined: bool) -> Dict[str, List[Result]]:
    """Return the results of each table, of a kind with one batch, in one mode or in all."""
    several = len({result.kind for result in results}) > 1
    found: Dict[str, List[Result]] = {}
    for result in results:
        modes = '' if joined else f'{result.mode}, '
        heading = f'{modes}batch {result.batch}, {result.dtype}'.capitalize()
        found.setdefault(f'{heading}, {result.kind}s' if several else heading, []).append(result)
    return found


def _title(group: Sequence[Result]) -> str:
    result = group[0]
    return f'{result.case}, {result.mode}, batch {result.batch}, {result.dtype}'


def _facts(context: dict) -> str:
    """Return machine, versions and other facts of a record in one line."""
    found = [f'{k}: {value}' for k, value in context.items() if k not in ('plots', 'joined')]
    return ' '.join(f'{fact[0].upper()}{fact[1:]}.' for fact in found)


def table(part: Sequence[Result]) -> List[str]:
    """Return Markdown with one row per case and baseline, one column per size, and the slopes.

    Args:
        part: results of one kind and batch; the columns of several modes are side by side.
    """
    modes = dict.fromkeys(result.mode for result in part)
    found = {mode: _of_mode([of for of in part if of.mode == mode]) for mode in modes}
    columns = ['']
    for mode, (headings, _) in found.items():
        columns += [f'{mode}: {heading}' if len(modes) > 1 else heading for heading in headings]
    lines = []
    for name in dict.fromkeys(name for _, rows in found.values() for name in rows):
        cells = [rows.get(name, [''] * len(headings)) for headings, rows in found.values()]
        lines.append([name, *(cell for of_mode in cells for cell in of_mode)])
    return markdown(columns, lines)


def _of_mode(part: Sequence[Result]) -> Tuple[List[str], Dict[str, List[str]]]:
    """Return the columns of results of one mode, and their cells by the name of the row."""
    # The tokens of an image depend on the model.
    sizes: Dict[str, Set[int]] = {}
    for result in sorted(part, key=lambda result: result.tokens):
        sizes.setdefault(result.size, set()).add(result.tokens)
    cases = dict.fromkeys(result.case for result in part)
    lines, exponents = {}, []
    for case in cases:
        group = [result for result in part if result.case == case]
        fitted = slopes(group)
        found = {(of.baseline, of.size): of for of in group}
        first = group[0].baseline
        for name in dict.fromkeys(result.baseline for result in group):
            # A case may leave out a baseline at some sizes.
            row = [(found.get((name, size)), found.get((first, size))) for size in sizes]
            title = f'{case}: {name}' if len(cases) > 1 else name
            lines[title] = [cell(result, base) if result else '' for result, base in row]
            exponents.append(fitted.get(name, (None, None)))
    columns = [
        f'{size}, {min(tokens):,} tokens' if len(tokens) == 1 else size
        for size, tokens in sizes.items()
    ]
    for heading, values in zip(('slope of time', 'slope of memory'), zip(*exponents)):
        if any(value is not None for value in values):
            columns.append(heading)
            for line, value in zip(lines.values(), values):
                line.append('' if value is None else f'{value:.2f}')
    return columns, lines


def cell(result: Result, first: Optional[Result]) -> str:
    """Return the median ± half the interquartile range of a call, its ratio and peak memory.

    Args:
        first: result of the first baseline of the case at this size, whose time is 1, if it was
            run.
    """
    if result.skipped:
        return result.skipped
    time = result.time
    factor, unit = (1.0, 's') if time.median >= 1 else (1e3, 'ms')
    text = digits(factor * time.median)
    if len(result.seconds) > 1:
        half = factor * (time.high - time.low) / 2
        text += f' ± {half:.0f}' if half >= 9.5 else f' ± {half:.1g}'
    text += f' {unit}'
    if first and result is not first and not first.skipped:
        ratio = time.median / first.time.median
        text += f' ({ratio:.0f}x)' if ratio >= 10 else f' ({ratio:.{2 if ratio > 0.1 else 3}f}x)'
    return f'{text}, {digits(result.peak_bytes / 2**20)} MiB'


def plot(group: Sequence[Result]) -> 'Figure':
    """Plot time and peak memory by tokens on logarithmic axes, with slopes in the legend."""
    # Imported here because matplotlib may be missing on a GPU machine.
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogFormatter

    fitted = slopes(group)
    figure = Figure(figsize=(9, 4), layout='constrained')
    labels = ('time of a call, ms', 'peak memory of a call, MiB')
    for i, (axes, label) in enumerate(zip(figure.subplots(1, 2), labels)):
        for name in dict.fromkeys(result.baseline for result in group):
            points = [r for r in group if r.baseline == name and not r.skipped]
            values = [1e3 * r.time.median if i == 0 else r.peak_bytes / 2**20 for r in points]
            of = fitted.get(name, (None, None))[i]
            legend = name if of is None else f'{name}, slope {of:.2f}'
            axes.plot([r.tokens for r in points], values, marker='o', label=legend)
        ticks = sorted({result.tokens for result in group})
        axes.set(xscale='log', yscale='log', xlabel='tokens', ylabel=label)
        axes.set_xticks(ticks, [f'{tick:,}' for tick in ticks], rotation=30, fontsize=7)
        axes.set_xticks([], minor=True)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f'{value:g}'))
        axes.yaxis.set_minor_formatter(LogFormatter())
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
    figure.suptitle(_title(group))
    return figure
