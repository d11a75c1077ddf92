"""Picture files of matplotlib."""

from pathlib import Path
from typing import Any, Union

from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.figure import Figure

from ..utils import check_writable


def save_figure(figure: Figure, path: Union[str, Path], **options: Any) -> Path:
    """Write a figure, and the folders above it, with options of ``savefig``; return the path."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, **options)
    return path


def check_picture(option: str, path: Path) -> None:
    """Raise ValueError if matplotlib has no format for a suffix, WriteError if it cannot write.

    ``option`` is where the path was given, for messages.
    """
    suffixes = sorted(f'.{kind}' for kind in FigureCanvasBase.get_supported_filetypes())
    if path.suffix.lower() not in suffixes:
        raise ValueError(f'{option} must end with one of {", ".join(suffixes)}, got {str(path)!r}')
    check_writable(path)
