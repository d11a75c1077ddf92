"""Tables in Markdown."""

from typing import Callable, Dict, Iterable, List, Sequence


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
    """Return the arguments of :func:`markdown` with a column per key of the rows.

    Example:
        >>> rows_table([dict(name='a', ms=0.12345), dict(name='b|c', share=0.5)])['lines']
        [['a', '0.123', ''], ['b/c', '', '50%']]
    """
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return dict(columns=columns, lines=[[_text(name, row) for name in columns] for row in rows])


def _text(name: str, row: dict) -> str:
    value = row.get(name, '')
    if isinstance(value, float):
        return f'{value:.0%}' if name == 'share' else f'{value:.3g}'
    return str(value).replace('|', '/')


def pivot(
    keys: Sequence[str], column: str, cell: Callable[[List[dict]], str]
) -> Callable[[Sequence[dict]], Dict[str, list]]:
    """Return a function from rows to the arguments of :func:`markdown`.

    Args:
        keys: names of the values that a line of the table has in common.
        column: name of the value that a column of the table has in common.
        cell: returns the text of a cell from its rows.

    Example:
        >>> rows = [dict(name='a', size=64, ms=1), dict(name='a', size=256, ms=4)]
        >>> pivot(['name'], 'size', lambda rows: f'{rows[0]["ms"]} ms')(rows)
        {'columns': ['name', '64', '256'], 'lines': [['a', '1 ms', '4 ms']]}
    """

    def table(rows: Sequence[dict]) -> Dict[str, list]:
        cells: Dict[tuple, Dict[object, List[dict]]] = {}
        for row in rows:
            line = cells.setdefault(tuple(str(row.get(key, '')) for key in keys), {})
            line.setdefault(row[column], []).append(row)
        names = list(dict.fromkeys(row[column] for row in rows))
        titles = [f'{name:,}' if isinstance(name, int) else str(name) for name in names]
        lines = [
            [*key, *(cell(line[name]) if name in line else '' for name in names)]
            for key, line in cells.items()
        ]
        return dict(columns=[*keys, *titles], lines=lines)

    return table


def replaced(text: str, begin: str, end: str, lines: Sequence[str]) -> str:
    """Return a page with other lines between a line ``begin`` and the line ``end`` below it.

    Raises:
        ValueError: the page has no such place, or two.

    Example:
        >>> replaced('a\\n<1>\\nold\\n</1>\\nb', '<1>', '</1>', ['new'])
        'a\\n<1>\\n\\nnew\\n\\n</1>\\nb'
    """
    if text.count(begin) != 1 or end not in text.split(begin)[1]:
        raise ValueError(f'the page must have one line {begin}, and below it {end}')
    before, after = text.split(begin)
    _, after = after.split(end, 1)
    return '\n'.join([before + begin, '', *lines, '', end + after])


def row(cells: Iterable[str]) -> str:
    """Return the line of a table with these cells."""
    return f'| {" | ".join(cells)} |'
