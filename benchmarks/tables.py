"""Tables in Markdown."""

from typing import Iterable, List, Sequence


def markdown(columns: Sequence[str], lines: Iterable[Sequence[str]]) -> List[str]:
    """Return the lines of a table whose first column is left-aligned.

    Example:
        >>> print(*markdown(['size', 'ms'], [['64', '0.1']]), sep='\\n')
        | size | ms |
        | --- | ---: |
        | 64 | 0.1 |
    """
    return [row(columns), '| --- |' + ' ---: |' * (len(columns) - 1), *map(row, lines)]


def row(cells: Iterable[str]) -> str:
    """Return the line of a table with these cells."""
    return f'| {" | ".join(cells)} |'
