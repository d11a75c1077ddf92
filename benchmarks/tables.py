"""Tables in Markdown."""

from typing import Dict, Iterable, List, Sequence


def markdown(columns: Sequence[str], lines: Iterable[Sequence[str]]) -> List[str]:
    """Return the lines of a table whose first column is left-aligned."""
    return [row(columns), '| --- |' + ' ---: |' * (len(columns) - 1), *map(row, lines)]


def rows_table(rows: Sequence[dict]) -> Dict[str, list]:
    """Return the arguments of :func:`.report.number_table`, a column for each key of the rows."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [[row.get(name) for name in columns] for row in rows]
    percent = [i for i, name in enumerate(columns) if name == 'share']
    return dict(columns=columns, lines=lines, percent=percent)


def row(cells: Iterable[str]) -> str:
    """Return the line of a table with these cells."""
    return f'| {" | ".join(cell.replace("|", "/") for cell in cells)} |'
