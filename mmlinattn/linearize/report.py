"""Report of a distillation: JSON, a page of tables and a picture."""

from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

from ..utils import write_json, write_text
from .scores import main_score
from .speed import crossover

STAGES = ('teacher', 'swap', 'a', 'b', 'c')
TITLES = dict(
    teacher='teacher',
    swap='direct swap',
    a='after A (attentions)',
    b='after B (outputs)',
    c='after C (fine-tuning)',
)
COLOURS = dict(teacher='grey', swap='C3', a='C0', b='C2', c='C4')


def recovered(record: Dict[str, Any], stage: str) -> Optional[float]:
    """Return the share of the gap between direct swap and teacher that a stage closes.

    Returns:
        1.0 at the teacher's main score; None without scores or without a gap.

    Example:
        >>> scores = dict(teacher=dict(mIoU=80.0), swap=dict(mIoU=30.0), b=dict(mIoU=75.0))
        >>> recovered(dict(scores=scores), 'b')
        0.9
    """
    scores = record.get('scores') or {}
    if not {'teacher', 'swap', stage} <= scores.keys():
        return None
    name = main_score(scores['teacher'])
    top, bottom, found = (scores[key].get(name) for key in ('teacher', 'swap', stage))
    if None in (top, bottom, found) or top == bottom:
        return None
    return (found - bottom) / (top - bottom)


def markdown(record: Dict[str, Any]) -> str:
    """Return the page of a report."""
    options = record['options']
    lines = [
        '# Linearised model',
        '',
        f'`{options["attn"]["type"]}` in layers {_listed(record["replaced"])}'
        + (f', softmax in {_listed(record["kept"])}' if record['kept'] else '')
        + f'. A: {options["iters_a"]} iterations, B: {options["iters_b"]}, batch size '
        f'{options["batch_size"]} x {record["processes"]}, seed {options["seed"]}'
        + (f', {record["images"]} images without labels.' if record['images'] else '.'),
        '',
    ]
    scores = record.get('scores') or {}
    if scores:
        names = list(scores['teacher'])
        rows = []
        for stage in (stage for stage in STAGES if stage in scores):
            share = recovered(record, stage)
            cells = [f'{scores[stage].get(name, float("nan")):.4g}' for name in names]
            rows.append([TITLES[stage], *cells, '' if share is None else f'{100 * share:.0f}%'])
        lines += ['## Scores', '', *_table(['', *names, 'gap closed'], rows), '']
    errors = record.get('errors') or {}
    if errors:
        blocks = list(next(iter(errors.values())))
        rows = [[name, *(f'{errors[stage][name]:.3f}' for stage in errors)] for name in blocks]
        lines += ['## Error of each attention', '']
        lines += ["Squared error over the teacher's mean square, on the teacher's inputs.", '']
        lines += [*_table(['', *(TITLES[stage] for stage in errors)], rows), '']
    if record.get('speed'):
        lines += _speed(record)
    return '\n'.join(lines)


def _speed(record: Dict[str, Any]) -> List[str]:
    rows = [
        [
            f'{row["side"]:.0f}x{row["side"]:.0f}',
            f'{1e3 * row["teacher_s"]:.1f}',
            f'{1e3 * row["student_s"]:.1f}',
            f'{row["teacher_s"] / row["student_s"]:.2f}x',
            f'{row["teacher_bytes"] / 2**20:.0f}',
            f'{row["student_bytes"] / 2**20:.0f}',
        ]
        for row in record['speed']
    ]
    side = crossover(record['speed'])
    found = f'from {side}x{side} on' if side else 'at no measured size'
    head = ['image', 'teacher ms', 'student ms', 'faster', 'teacher MiB', 'student MiB']
    return [
        f'## Time and memory from the image to the output of the {record["parts"][-1]}', '',
        *_table(head, rows), '',
        f'The student is faster {found} ({record["device"]}).', '',
    ]  # fmt: skip


def write_report(folder: Path, record: Dict[str, Any]) -> None:
    """Write ``report.json``, ``report.md`` and ``report.png``."""
    shares = {stage: recovered(record, stage) for stage in ('a', 'b', 'c')}
    found = dict(record, gap_closed={k: v for k, v in shares.items() if v is not None})
    if record.get('speed'):
        found['crossover'] = crossover(record['speed'])
    write_json(folder / 'report.json', found)
    write_text(folder / 'report.md', markdown(record))
    figure = _draw(record)
    if figure is not None:
        figure.savefig(folder / 'report.png')


def _draw(record: Dict[str, Any]) -> Any:
    """Draw scores, errors and times side by side; return None if there are none."""
    from matplotlib.figure import Figure

    draws: Dict[str, Callable[[Any, Any], None]] = dict(
        scores=_draw_scores, errors=_draw_errors, speed=_draw_speed
    )
    parts = [name for name in draws if record.get(name)]
    if not parts:
        return None
    figure = Figure(figsize=(5.4 * len(parts), 4.2), dpi=110, layout='constrained')
    for axis, name in zip(figure.subplots(1, len(parts), squeeze=False)[0], parts):
        draws[name](axis, record[name])
        axis.grid(alpha=0.3)
        axis.set_axisbelow(True)
    return figure


def _draw_scores(axis: Any, scores: Dict[str, Dict[str, float]]) -> None:
    name = main_score(scores['teacher'])
    stages = [stage for stage in STAGES if stage in scores]
    bars = axis.bar(
        [TITLES[stage].split(' (')[0] for stage in stages],
        [scores[stage].get(name or '', 0.0) for stage in stages],
        color=[COLOURS[stage] for stage in stages],
    )
    axis.bar_label(bars, fmt='%.4g')
    axis.set_title(name or '')


def _draw_errors(axis: Any, errors: Dict[str, Dict[str, float]]) -> None:
    for stage, values in errors.items():
        axis.plot([*values.values()], marker='o', color=COLOURS[stage], label=TITLES[stage])
    axis.set(title='error of each attention', xlabel='replaced attention', yscale='log')
    axis.set_xticks(range(len(values)))
    axis.legend()


def _draw_speed(axis: Any, rows: List[Dict[str, float]]) -> None:
    sides = [row['side'] for row in rows]
    for name, colour in (('teacher', 'grey'), ('student', 'C2')):
        times = [row[f'{name}_s'] for row in rows]
        axis.plot(sides, times, marker='o', color=colour, label=name)
    axis.set(title='time of one image', xlabel='side of the image', ylabel='seconds')
    axis.set(xscale='log', yscale='log')
    axis.set_xticks(sides, [f'{side:.0f}' for side in sides])
    axis.minorticks_off()
    axis.legend()


def _table(head: List[str], rows: List[List[str]]) -> List[str]:
    rule = ['---', *['---:'] * (len(head) - 1)]
    return [f'| {" | ".join(row)} |' for row in [head, rule, *rows]]


def _listed(numbers: List[int]) -> str:
    return ', '.join(map(str, numbers))
