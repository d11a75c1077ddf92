"""Names of picture files."""

from pathlib import Path

from matplotlib.backend_bases import FigureCanvasBase


def check_picture_suffix(option: str, path: Path) -> None:
    """Raise ValueError if matplotlib has no format for the suffix of a file name.

    Example:
        >>> check_picture_suffix('--out', Path('weights.png'))
    """
    suffixes = sorted(f'.{kind}' for kind in FigureCanvasBase.get_supported_filetypes())
    if path.suffix.lower() not in suffixes:
        raise ValueError(f'{option} must end with one of {", ".join(suffixes)}, got {str(path)!r}')
