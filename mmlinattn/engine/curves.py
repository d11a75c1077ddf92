"""Curves of losses, scores and learning rate, from the scalars that MMEngine logs."""

import json
import re
from pathlib import Path
from typing import Dict, Iterable, List, Optional, Sequence, Tuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .hooks.ripple_weights_hook import MEASURES

# Losses and scores beside which more lines could not be told apart.
MOST_LINES = 9
# The last two are scores of a class, of CocoMetric and BoundaryIoUMetric with classwise=True.
NO_SCORES = re.compile('data_time|time|step|memory|coco/.*_precision|boundary/IoU_.*')
# A loss that varies by more is drawn on a logarithmic axis.
WIDE_RANGE = 30.0
Curves = Dict[str, List[Tuple[float, float]]]


def read_scalars(
    folder: Path, runs: Sequence[Tuple[str, int, Optional[int]]]
) -> Tuple[Curves, Curves]:
    """Read what a training and its resumed parts have logged: training, then validation, by name.

    Each part has a folder in the work directory, the iteration at which it began, and the
    iterations of its epochs. In the lists of (x, value) x is in epochs, or in iterations if that is
    None. NaN, infinite values and COCO's -1 for "no objects" are left out.
    """
    training: Curves = {}
    validation: Curves = {}
    ends = [start / (length or 1) for _, start, length in runs[1:]] + [float('inf')]
    for (run, _, length), end in zip(runs, ends):
        path = folder / run / 'vis_data' / 'scalars.json'
        for text in path.read_text(encoding='utf-8').splitlines() if path.is_file() else ():
            try:
                line = json.loads(text)
            except json.JSONDecodeError:  # cut off, as by a full disk
                continue
            if 'iter' in line:
                curves, x = training, line['iter'] / (length or 1)
            else:
                curves, x = validation, line['step']
            if x > end + 1e-6:
                break  # done again by the next part
            for name, value in line.items():
                number = isinstance(value, (int, float)) and np.isfinite(value)
                if number and not (curves is validation and value == -1):
                    curves.setdefault(name, []).append((x, value))
    return training, validation


def draw_curves(training: Curves, validation: Curves, unit: str) -> Optional[Figure]:
    """Draw losses, scores and learning rate side by side; return None without losses."""
    parts = [name for name in training if 'loss' in name and name != 'loss']
    if len(parts) > MOST_LINES:  # those of the inner layers of a decoder
        parts = [name for name in parts if not re.search(r'(^|\.)d\d+\.', name)]
    losses = [*filter(training.get, ['loss']), *(parts if len(parts) > 1 else ())]
    if not losses:
        return None
    scores = [name for name in validation if not NO_SCORES.fullmatch(name)]
    figure = Figure(figsize=(16 if scores else 11, 4.8), dpi=110, layout='constrained')
    axes = figure.subplots(1, 3 if scores else 2)
    _draw(axes[0], training, losses, 'loss')
    values = [value for name in losses for _, value in training[name] if value > 0]
    if values and max(values) > WIDE_RANGE * float(np.median(values)):
        axes[0].set_yscale('log')
    if scores:
        title = scores[0] if len(scores) == 1 else 'scores of the validation'
        _draw(axes[1], validation, scores, title, marker='o')
    rates = [name for name in training if name.rpartition('.')[2] == 'lr']  # of each optimizer
    _draw(axes[-1], training, rates, 'learning rate')
    for axis in axes:
        axis.set_xlabel(unit)
    return figure


def draw_ring_weights(training: Curves, unit: str) -> Optional[Figure]:
    """Draw what RippleWeightsHook has logged, one line per layer; return None if it has not."""
    starts = [f'ripple/{measure}/' for measure in MEASURES]
    layers = [name[len(starts[0]) :] for name in training if name.startswith(starts[0])]
    if not layers:
        return None
    colors = matplotlib.colormaps['viridis'](np.linspace(0, 0.9, len(layers)))
    figure = Figure(figsize=(16, 4.8), dpi=110, layout='constrained')
    axes = figure.subplots(1, 3)
    for axis, start, title in zip(axes, starts, MEASURES.values()):
        for layer, color in zip(layers, colors):
            axis.plot(*np.transpose(training[start + layer]), label=layer, color=color)
        axis.set(title=title, xlabel=unit)
        axis.grid(alpha=0.3)
    axes[1].legend(loc='upper center', bbox_to_anchor=(0.5, -0.14), ncols=3, fontsize=8)
    return figure


def _draw(axis: Axes, curves: Curves, names: Iterable[str], title: str, marker: str = '') -> None:
    names = [*names]
    if len(names) > MOST_LINES:
        title += f', the first {MOST_LINES} of {len(names)}'
    for name in names[:MOST_LINES]:
        total = name == 'loss'
        x, y = zip(*curves.get(name) or [(np.nan, np.nan)])
        axis.plot(
            x, y, label=name, marker=marker, markersize=4,
            color='black' if total else None, linewidth=2 if total else 1.3,
        )  # fmt: skip
    axis.set_title(title)
    axis.grid(alpha=0.3)
    if len(axis.lines) > 1:  # below the axis, where it covers no curve
        legend = axis.legend(loc='upper center', bbox_to_anchor=(0.5, -0.14), ncols=3, fontsize=8)
        for text in legend.get_texts():  # names of classes may have $
            text.set_parse_math(False)
