"""Picture of ranks and singular values by layer."""

from pathlib import Path
from typing import List, Sequence

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..analysis.rank import MATRICES, LayerRank
from .files import save_figure

SMALLEST = 1e-8  # singular values below it, over the largest, are not drawn


def draw_ranks(path: Path, layers: Sequence[LayerRank], tolerance: float, title: str) -> Path:
    """Draw ranks by layer above and singular values below, by kind of matrix; return ``path``.

    ``layers`` are from :func:`mmlinattn.analysis.rank.layer_ranks`; ``tolerance`` is drawn as a
    line.
    """
    matrices = [name for name in MATRICES if any(name in layer.spectra for layer in layers)]
    figure = Figure(figsize=(4.2 * len(matrices), 6.6), dpi=100, layout='constrained')
    grid = figure.subplots(2, len(matrices), squeeze=False)
    for column, matrix in enumerate(matrices):
        _draw_ranks(grid[0, column], layers, matrix)
        _draw_values(grid[1, column], layers, matrix, tolerance)
    figure.suptitle(title, fontsize=9)
    return save_figure(figure, path)


def _draw_ranks(axes: Axes, layers: Sequence[LayerRank], matrix: str) -> None:
    """Draw mean, smallest and largest rank of each layer, and the largest possible one."""
    numbers = [i for i, layer in enumerate(layers) if matrix in layer.spectra]
    spectra = [layers[i].spectra[matrix] for i in numbers]
    means = [spectrum.mean for spectrum in spectra]
    spans = [
        [spectrum.mean - min(spectrum.ranks) for spectrum in spectra],
        [max(spectrum.ranks) - spectrum.mean for spectrum in spectra],
    ]
    axes.errorbar(numbers, means, spans, marker='o', markersize=4, capsize=3, label='rank')
    full = [spectrum.mean_full for spectrum in spectra]
    axes.plot(numbers, full, linestyle='--', color='grey', marker='_', label='full rank')
    axes.set_title(', '.join(MATRICES[matrix]), fontsize=9)
    axes.set(xlabel='layer', xlim=(-0.5, len(layers) - 0.5))
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


def _draw_values(axes: Axes, layers: Sequence[LayerRank], matrix: str, tolerance: float) -> None:
    """Draw the singular values of each layer, from dark (first layer) to light (last)."""
    colors: List = list(colormaps['viridis']([i / len(layers) for i in range(len(layers))]))
    for i, layer in enumerate(layers):
        if matrix not in layer.spectra:
            continue
        values = [max(value, SMALLEST) for value in layer.spectra[matrix].values]
        label = f'{i} {layer.attention}' if i in (0, len(layers) - 1) else None
        axes.plot(range(1, len(values) + 1), values, color=colors[i], label=label)
    axes.axhline(tolerance, color='red', linewidth=1, label=f'tolerance {tolerance:g}')
    axes.set(yscale='log', xlabel='number of the singular value', ylabel='over the largest')
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
