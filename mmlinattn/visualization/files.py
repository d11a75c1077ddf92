"""Picture files of matplotlib."""

from pathlib import Path
from typing import Any, Union

from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.figure import Figure


def save_figure(figure: Figure, path: Union[str, Path], **options: Any) -> Path:
    """Write a figure, and the folders above it, with options of ``savefig``; return the path."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, **options)
    return path


def check_picture_suffix(option: str, path: Path) -> None:
    """Raise ValueError if matplotlib has no format for the suffix of a file name.

    Example:
        >>> check_picture_suffix('--out', Path('weights.png'))
    """
    suffixes = sorted(f'.{kind}' for kind in FigureCanvasBase.get_supported_filetypes())
    if path.suffix.lower() not in suffixes:
        raise ValueError(f'{option} must end with one of {", ".join(suffixes)}, got {str(path)!r}')
