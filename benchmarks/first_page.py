"""Draw the plot of the README from committed records: ``python -m benchmarks.first_page``."""

import json
from hashlib import sha256
from pathlib import Path
from statistics import median
from typing import Any, Dict

from .report import DOCS

# Names of the rows in the record, from the slowest, and what the plot calls them.
SERIES = {
    'MMSegmentation': 'MMSegmentation',
    'mmlinattn': 'its own attention, this package',
    'RWGKA': 'with RWGKA, linear cost',
    'RALA': 'with RALA, linear cost',
}
RECORD = DOCS / 'benchmarks' / 'segformer-b0.json'
COLOURS = ('#9a9a9a', '#4c78a8', '#54a24b', '#54a24b')
SIZES = {'1024x1024': '1024 x 1024', '1024x2048': '2048 x 1024'}


def rows() -> Dict[str, Dict[str, Any]]:
    """Return seconds and MiB of each series by size of the image (rows x columns)."""
    record = json.loads(RECORD.read_text())
    found: Dict[str, Dict[str, Any]] = {size: {} for size in SIZES}
    for result in record['results']:
        if result['mode'] == 'forward' and result['size'] in SIZES and result['batch'] == 1:
            values = median(result['seconds']), result['peak_bytes'] / 2**20
            found[result['size']][result['baseline']] = values
    return found


def draw(path: Path) -> None:
    """Write the plot, with the sha256 of its record as text ``Source``."""
    import matplotlib

    matplotlib.use('Agg')
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(9, 3.6), sharey=True, layout='constrained')
    title = "SegFormer-B0, one image, two CPU cores (this package: the head of SegFormer's release)"
    figure.suptitle(title, fontsize=11)
    for line, (size, values) in zip(axes, rows().items()):
        for ax, place, label in zip(line, range(2), ('{:.2f} s', '{:,.0f} MiB')):
            numbers = [values[name][place] for name in SERIES]
            bars = ax.barh([*SERIES.values()], numbers, color=COLOURS, height=0.7)
            ax.bar_label(bars, [label.format(number) for number in numbers], padding=4, fontsize=9)
            ax.set_title(f'{SIZES[size]}: {("time", "peak memory")[place]}', fontsize=9, loc='left')
            ax.set_xlim(0, 1.25 * max(numbers))
            ax.set_xticks([])
            ax.tick_params(axis='y', length=0, labelsize=9)
            ax.spines[['top', 'right', 'bottom']].set_visible(False)
    axes[0][0].invert_yaxis()  # of all
    source = sha256(RECORD.read_bytes()).hexdigest()
    figure.savefig(path, dpi=120, metadata=dict(Source=source))


if __name__ == '__main__':
    draw(DOCS / 'images' / 'segformer-b0.png')
