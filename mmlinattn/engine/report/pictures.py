"""Pictures and table of the scores per class."""

import csv
from io import StringIO
from typing import List

import numpy as np
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

from .evaluation import BACKGROUND, MIN_IOU, MIN_SCORE, Evaluation

# Counts of each class, of which the table gives the sum and not the mean.
COUNTS = ('objects', 'pixels', 'images')
# Most classes whose cells have numbers, whose names are drawn, and whose curves have colours.
MOST_NUMBERS, MOST_NAMES, MOST_COLOURS = 25, 200, 10
# Best and worst classes that are named among more.
EXTREMES = 5


def per_class_csv(evaluation: Evaluation) -> str:
    """Return the scores as CSV: a row per class, then their means and the sums of counts.

    Example:
        >>> columns = dict(IoU=[0.5, 0.7], pixels=[10, 30])
        >>> found = Evaluation(['cat', 'dog'], columns, [[5, 5], [0, 30]])
        >>> print(per_class_csv(found), end='')
        class,IoU,pixels
        cat,0.5,10
        dog,0.7,30
        all classes,0.6,40
    """
    file = StringIO()
    table = csv.writer(file, lineterminator='\n')
    table.writerow(['class', *evaluation.columns])
    columns = evaluation.columns.values()
    for name, *row in zip(evaluation.classes, *columns):
        table.writerow([name, *('' if value is None else value for value in row)])
    last: List[object] = []
    for name, column in evaluation.columns.items():
        values = [value for value in column if value is not None]
        mean = round(float(np.mean(values)), 4) if values else ''
        last.append(sum(values) if name in COUNTS else mean)
    table.writerow(['all classes', *last])
    return file.getvalue()


def draw_confusion(evaluation: Evaluation) -> Figure:
    """Draw the confusion matrix in percent of the true class."""
    matrix = np.asarray(evaluation.confusion, dtype=float)
    sums = matrix.sum(1, keepdims=True)
    percent = 100 * np.divide(matrix, sums, out=np.zeros_like(matrix), where=sums > 0)
    names = evaluation.classes + [BACKGROUND] * (len(matrix) - len(evaluation.classes))
    count, is_small = len(names), len(names) <= MOST_NUMBERS
    cell = 0.5 if is_small else 0.17
    side = max(3.2, cell * count) if count <= MOST_NAMES else 12
    figure = Figure(figsize=(side + 3, side + 2.2), dpi=110, layout='constrained')
    axis = figure.subplots()
    # Linear colours would hide confusions of a few percent.
    norm = PowerNorm(0.5, 0, 100)
    image = axis.imshow(percent, cmap='Blues', norm=norm, interpolation='nearest')
    figure.colorbar(image, label='% of the true class', shrink=min(1.0, 5 / side + 0.2))
    size = 9 if is_small else 7
    if count <= MOST_NAMES:
        upright = count > 4 or max(map(len, names)) > 10
        axis.set_xticks(range(count), names, rotation=90 if upright else 0, fontsize=size)
        axis.set_yticks(range(count), names, fontsize=size)
    if is_small:
        for i, j in np.ndindex(percent.shape):
            colour = 'white' if percent[i, j] > 40 else 'black'
            text = f'{percent[i, j]:.0f}' if matrix[i, j] else ''
            axis.text(j, i, text, ha='center', va='center', fontsize=size, color=colour)
    axis.set_xlabel('predicted')
    axis.set_ylabel('true')
    of_boxes = f'\nscore >= {MIN_SCORE}, IoU >= {MIN_IOU}' if evaluation.precision else ''
    axis.set_title(f'Confusion, {evaluation.about}{of_boxes}', fontsize=11)
    return figure


def draw_precision_recall(evaluation: Evaluation) -> Figure:
    """Draw the precision of each class and their mean over the recall, at IoU 0.5."""
    curves = np.asarray(evaluation.precision, dtype=float)  # None becomes NaN
    recall = np.linspace(0, 1, curves.shape[1])
    there = ~np.isnan(curves).all(1)
    scores = {i: float(np.mean(curves[i])) for i in np.flatnonzero(there)}
    ranked = sorted(scores, key=lambda i: -scores[i])
    named = ranked if len(ranked) <= MOST_COLOURS else ranked[:EXTREMES] + ranked[-EXTREMES:]
    figure = Figure(figsize=(9.5, 5.6), dpi=110, layout='constrained')
    axis = figure.subplots()
    for i in set(ranked) - set(named):
        axis.plot(recall, curves[i], color='lightgrey', linewidth=0.7)
    for n, i in enumerate(named):
        label = f'{evaluation.classes[i]} {scores[i]:.3f}'
        axis.plot(recall, curves[i], color=f'C{n}', linewidth=1.2, label=label)
    if ranked:
        mean = curves[there].mean(0)
        label = f'mean of {len(ranked)} classes {mean.mean():.3f}'
        axis.plot(recall, mean, color='black', linewidth=2.5, label=label)
    axis.set(xlim=(0, 1), ylim=(0, 1.02), xlabel='recall', ylabel='precision')
    axis.set_title(f'Precision and recall at IoU {MIN_IOU}, {evaluation.about}', fontsize=11)
    axis.grid(alpha=0.3)
    few = len(named) == len(ranked)
    title = 'AP50' if few else f'AP50: {EXTREMES} best and {EXTREMES} worst'
    figure.legend(loc='outside right upper', title=title, fontsize=9)
    return figure
