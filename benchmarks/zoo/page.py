"""Table and chart of docs/zoo.md."""

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Dict, List, Optional, Sequence, Tuple

from .plan import DATA, HOSTS, OPTIONS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BEGIN, END = '<!-- table: python -m benchmarks.zoo -->', '<!-- end of table -->'
LEAST_WIDTH = 8  # minimal width of the panels of the chart, in points of accuracy
FACTS = ('machine', 'versions', 'commit')


@dataclass
class Zoo:
    """Content of the page.

    Attributes:
        attentions: names, in the order of the rows.
        hosts, data: names, in the order of tables and columns.
        records: records of all requested trainings; one without ``accuracy`` and ``error`` has not
            been run with these settings.
        refused: reasons of missing trainings, by host and attention.
        costs: see :func:`benchmarks.zoo.costs.measure`.
        missing: reasons of missing datasets, by name.
        command: command of the run.
    """

    attentions: List[str]
    hosts: List[str]
    data: List[str]
    records: List[dict]
    refused: Dict[Tuple[str, str], str]
    costs: dict
    missing: Dict[str, str]
    command: str
    chart: Optional[str] = None

    def of(self, host: str, data: str, attention: str) -> List[dict]:
        wanted = dict(host=host, data=data, attention=attention)
        return [record for record in self.records if wanted.items() <= record.items()]

    def accuracies(self, host: str, data: str, attention: str) -> List[float]:
        found = self.of(host, data, attention)
        return [record['accuracy'] for record in found if 'accuracy' in record]


def deviation(values: Sequence[float]) -> float:
    """Return the standard deviation of a sample (n - 1), or 0 for one value."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def table(zoo: Zoo) -> List[str]:
    """Return Markdown: one table per host, the gaps with their reasons, and the settings."""
    lines: List[str] = []
    for host in zoo.hosts:
        if lines:
            lines.append('')
        lines += [f'## {HOSTS[host]}', '', *_of_host(zoo, host)]
    lines += ['', *_gaps(zoo)]
    if zoo.chart:
        lines += ['', f'![Accuracy of each attention, by host and data]({zoo.chart})']
    lines += ['', *_made_with(zoo)]
    return lines


def _of_host(zoo: Zoo, host: str) -> List[str]:
    heads = ['attention', *(f'{DATA[name]}, %' for name in zoo.data)]
    heads += ['parameters, M', 'ms an image', 'MiB a step']
    lines = [f'| {" | ".join(heads)} |', '| --- |' + ' ---: |' * (len(heads) - 1)]
    for attention in zoo.attentions:
        cells = [f'`{attention}`', *(_accuracy(zoo, host, of, attention) for of in zoo.data)]
        cost = zoo.costs.get('hosts', {}).get(host, {}).get(attention)
        if (host, attention) in zoo.refused:
            cells += ['', '', '']
        elif cost is None:
            cells += ['not measured'] * 3
        else:
            median, low, high = cost['ms']
            cells += [f'{cost["params"] / 1e6:.2f}', f'{median:.2f} ± {(high - low) / 2:.2f}']
            cells.append(f'{cost["bytes"] / 2**20:.0f}')
        lines.append(f'| {" | ".join(cells)} |')
    return lines


def _accuracy(zoo: Zoo, host: str, data: str, attention: str) -> str:
    if (host, attention) in zoo.refused:
        return 'refused'
    if data in zoo.missing:
        return 'no data'
    records, values = zoo.of(host, data, attention), zoo.accuracies(host, data, attention)
    if any('error' in record for record in records):
        return 'failed'
    if not values:
        return 'not run'
    text = f'{statistics.mean(values):.1f}'
    if len(values) > 1:
        text += f' ± {deviation(values):.1f}'
    of = f'{len(values)} of {len(records)}' if len(values) < len(records) else f'{len(values)}'
    return f'{text} ({of})'


def _gaps(zoo: Zoo) -> List[str]:
    """Return one line per gap of the tables."""
    lines = [f'- {DATA[name]}: {why}.' for name, why in zoo.missing.items()]
    reasons: Dict[Tuple[str, str], List[str]] = {}
    for (host, attention), why in zoo.refused.items():
        why = why.replace(attention, 'it').split(';')[0]
        reasons.setdefault((host, why), []).append(f'`{attention}`')
    for (host, why), names in reasons.items():
        lines.append(f'- {HOSTS[host]} refuses {", ".join(names)}: {why}.')
    for record in zoo.records:
        if 'error' in record:
            name = f'{HOSTS[record["host"]]}, {DATA[record["data"]]}, `{record["attention"]}`'
            lines.append(f'- {name}, seed {record["seed"]}: {record["error"]}')
    used = {name: options for name, options in OPTIONS.items() if name in zoo.attentions}
    if used:
        texts = [
            f'`{name}` ' + ', '.join(f'{k}={v}' for k, v in options.items())
            for name, options in used.items()
        ]
        lines.append(f'- Not the defaults, which are for larger maps: {"; ".join(texts)}.')
    return lines


def _made_with(zoo: Zoo) -> List[str]:
    done = [record for record in zoo.records if 'accuracy' in record]
    lines = []
    for name in zoo.data:
        images = {(r['images'], r['images_val'], r['epochs']) for r in done if r['data'] == name}
        for train, val, epochs in sorted(images):
            error = 100 * (0.25 / val) ** 0.5
            lines.append(
                f'- {DATA[name]}: {train} images, {epochs} epochs, scored on {val}: the standard '
                f'error of one score is at most {error:.1f}.'
            )
    if done:
        minutes = sum(record['seconds'] for record in done) / 60
        lines.append(f'- {len(done)} trainings, {minutes:.0f} minutes of one core.')
    facts = [
        (what, '; '.join(dict.fromkeys(record[fact] for record in records if fact in record)))
        for fact in FACTS
        for what, records in ((f'{fact} of trainings', done), (f'{fact} of times', [zoo.costs]))
    ]
    lines += [f'- {what.capitalize()}: {values}.' for what, values in facts if values]
    return [*lines, f'- Command: `{zoo.command}`.']


def replaced(text: str, lines: Sequence[str]) -> str:
    """Return a page with the part between the marks replaced."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return '\n'.join([before + BEGIN, '', *lines, '', END + after])


def chart(zoo: Zoo) -> 'Figure':
    """Plot accuracies, one panel per host and dataset, attentions sorted by their sum of means."""
    from matplotlib.figure import Figure

    data = [name for name in zoo.data if name not in zoo.missing]
    panels = [(host, of) for host in zoo.hosts for of in data]

    def mean(host: str, of: str, attention: str) -> float:
        values = zoo.accuracies(host, of, attention)
        return statistics.mean(values) if values else 0.0

    rows = sorted(zoo.attentions, key=lambda name: sum(mean(*panel, name) for panel in panels))
    figure = Figure(figsize=(1.8 + 2.3 * len(panels), 1.1 + 0.27 * len(rows)), dpi=110)
    grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (host, of) in zip(grid, panels):
        for y, name in enumerate(rows):
            values = zoo.accuracies(host, of, name)
            if values:
                axes.plot(values, [y] * len(values), '.', color='0.65', markersize=5)
                axes.errorbar(
                    statistics.mean(values), y, xerr=deviation(values),
                    fmt='o', color='tab:blue', markersize=5, capsize=2, lw=1.2,
                )  # fmt: skip
            else:
                why = 'refused' if (host, name) in zoo.refused else 'not run'
                axes.text(0.03, y, why, va='center', fontsize=7, color='0.5',
                          transform=axes.get_yaxis_transform())  # fmt: skip
        low, high = axes.get_xlim()
        # A minimal width keeps small differences small.
        axes.set_xlim(min(low, high - LEAST_WIDTH), high + LEAST_WIDTH / 20)
        axes.set_title(f'{HOSTS[host]}, {DATA[of]}', fontsize=9)
        axes.set_xlabel('accuracy, %', fontsize=8)
        axes.tick_params(labelsize=8)
        axes.set_yticks(range(len(rows)), [name.removesuffix('Attention') for name in rows])
        axes.set_ylim(-0.6, len(rows) - 0.4)
        axes.grid(axis='x', color='0.9')
        axes.set_axisbelow(True)
    figure.tight_layout()
    return figure
