"""Markdown tables and the figure of the report."""

from dataclasses import fields
from pathlib import Path
from typing import Callable, Dict, List, Sequence

from ..report import table as baselines_table
from ..suite import Result
from ..tables import markdown
from .session import BAD, LEFT, Row, bad_jobs, left_jobs, rows_of

NAMES_SHOWN = 6
MESSAGES_SHOWN = 40
RESULT_FIELDS = {field.name for field in fields(Result)}


def text(name: str, value: object) -> str:
    """Return the text of a cell: shares in percent, numbers with three digits."""
    if value is None:
        return ''
    if name == 'share':
        return f'{value:.1%}'
    return f'{value:.3g}' if isinstance(value, float) else str(value).replace('|', '/')


def plain(*hidden: str) -> Callable[[List[Row]], List[str]]:
    """Return a formatter with one line per row, without the ``hidden`` columns."""

    def table(rows: List[Row]) -> List[str]:
        names = dict.fromkeys(name for row in rows for name in row if name not in hidden)
        return markdown([*names], ([text(n, row.get(n)) for n in names] for row in rows))

    return table


def pivot(
    keys: Sequence[str], column: str, cell: Callable[[Row], str]
) -> Callable[[List[Row]], List[str]]:
    """Return a formatter with a line per value of ``keys`` and a column per value of ``column``."""

    def table(rows: List[Row]) -> List[str]:
        columns = sorted({row[column] for row in rows})
        lines: Dict[tuple, dict] = {}
        for row in rows:
            lines.setdefault(tuple(row[key] for key in keys), {})[row[column]] = cell(row)
        return markdown(
            [*keys, *(f'{value:,}' for value in columns)],
            (
                [*map(str, key), *(found.get(c, '') for c in columns)]
                for key, found in lines.items()
            ),
        )

    return table


def worst_errors(rows: List[Row]) -> List[str]:
    """Return the number of cases and the largest errors by operator, form and dtype."""
    groups: Dict[tuple, List[Row]] = {}
    for row in rows:
        groups.setdefault((row['operator'], row['form'], row['dtype']), []).append(row)
    lines = []
    for key, group in groups.items():
        outputs = [row['output'] for row in group if 'output' in row]
        gradients = [
            value
            for row in group
            for name, value in row.items()
            if name.startswith('d') and isinstance(value, float)
        ]
        # NaN counts as the largest error.
        largest = [max(x, key=lambda e: (e != e, e), default=0.0) for x in (outputs, gradients)]
        counts = [str(sum(name in row for row in group)) for name in ('refused', 'wrong')]
        lines.append([*key, str(len(group)), *(f'{e:.1e}' for e in largest), *counts])
    names = ['operator', 'form', 'type', 'cases', 'largest error of outputs', 'of gradients']
    return markdown([*names, 'refused', 'wrong'], lines)


def baselines(rows: List[Row]) -> List[str]:
    """Return the tables of the benchmark suite by case, mode, batch, heads, layout and dtype."""
    groups: Dict[tuple, List[Result]] = {}
    for row in rows:
        key = tuple(row[name] for name in ('case', 'mode', 'batch', 'heads', 'layout', 'dtype'))
        result = Result(**{n: value for n, value in row.items() if n in RESULT_FIELDS})
        groups.setdefault(key, []).append(result)
    lines, copy = [], rows[0]['copy']
    for (case, mode, batch, heads, layout, dtype), group in groups.items():
        title = f'{case}, {mode}, batch {batch}, {dtype}'
        if group[0].kind != 'backbone':
            title += f', {heads} heads, {layout}'
        lines += [
            f'{title}:',
            '',
            *baselines_table(group, None if group[0].kind == 'backbone' else copy),
            '',
        ]
    return lines[:-1]


def report(sections: Sequence, records: Dict[str, dict], facts: Dict[str, str]) -> str:
    """Return the report; heading levels are those of docs/benchmarks.md."""
    lines = [
        '## A session with a GPU',
        '',
        *(f'- {name}: {value}' for name, value in facts.items()),
    ]
    bad = [
        f'- {name}, {job}: {why}' for name, r in records.items() for job, why in bad_jobs(r).items()
    ]
    lines += ['', '### What is wrong', '', *(bad[:MESSAGES_SHOWN] or ['Nothing was found.'])]
    lines += [f'- and {len(bad) - MESSAGES_SHOWN} more'] if len(bad) > MESSAGES_SHOWN else []
    for section in sections:
        record = records.get(section.name)
        if record is None:
            continue
        jobs = record['jobs'].values()
        ran = [job for job in jobs if job['state'] != LEFT]
        wrong = sum(job['state'] in BAD for job in jobs)
        count = f'{len(ran)} of {len(jobs)} jobs, {wrong} of them wrong'
        lines += ['', f'### {section.title}', '', f'{count}.']
        for why, names in left_jobs(record).items():
            more = f' and {len(names) - NAMES_SHOWN} more' if len(names) > NAMES_SHOWN else ''
            lines += ['', f'Left, {why}: {"; ".join(names[:NAMES_SHOWN])}{more}.']
        rows = rows_of(record)
        if rows:
            lines += ['', *section.table(rows)]
    return '\n'.join(lines) + '\n'


def picture(rows: List[Row], path: Path) -> bool:
    """Draw the share of the copy bandwidth by tokens; return False without matplotlib or rows."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    if not rows:
        return False
    modes = [*dict.fromkeys(row['mode'] for row in rows)]
    groups = [*dict.fromkeys((row['batch'], row['heads']) for row in rows)]
    names = [*dict.fromkeys(row['operator'] for row in rows)]
    figure = Figure(figsize=(5 * len(modes), 3.5 * len(groups)), layout='constrained')
    panels = figure.subplots(len(groups), len(modes), squeeze=False, sharey=True)
    for line, (batch, heads) in zip(panels, groups):
        for axes, mode in zip(line, modes):
            for name in names:
                points = sorted(
                    (row['tokens'], 100 * row['share'])
                    for row in rows
                    if (row['operator'], row['mode'], row['batch'], row['heads'])
                    == (name, mode, batch, heads)
                )
                axes.plot(*zip(*points), marker='o', label=name) if points else None
            title = f'{mode}, batch {batch}, {heads} heads'
            axes.set(xscale='log', xlabel='tokens', title=title)
            axes.grid(alpha=0.3)
        line[0].set_ylabel('% of copy bandwidth')
    panels[0][0].legend(fontsize=7)
    figure.savefig(path, dpi=120)
    return True
