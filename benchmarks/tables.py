"""Tables in Markdown."""

from typing import Dict, Iterable, List, Sequence


def markdown(columns: Sequence[str], lines: Iterable[Sequence[str]]) -> List[str]:
    """Return the lines of a table whose first column is left-aligned.

    Example:
        >>> print(*markdown(['size', 'ms'], [['64', '0.1']]), sep='\\n')
        | size | ms |
        | --- | ---: |
        | 64 | 0.1 |
    """
    return [row(columns), '| --- |' + ' ---: |' * (len(columns) - 1), *map(row, lines)]


def rows_table(rows: Sequence[dict]) -> Dict[str, list]:
    """Return the arguments of :func:`benchmarks.report.number_table`, a column per key of the rows.

    Example:
        >>> rows_table([dict(name='a', ms=0.12), dict(name='b', share=0.5)])['lines']
        [['a', 0.12, None], ['b', None, 0.5]]
    """
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [[row.get(name) for name in columns] for row in rows]
    percent = [i for i, name in enumerate(columns) if name == 'share']
    return dict(columns=columns, lines=lines, percent=percent)


def row(cells: Iterable[str]) -> str:
    """Return the line of a table with these cells."""
    return f'| {" | ".join(cell.replace("|", "/") for cell in cells)} |'
