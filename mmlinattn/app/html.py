"""HTML of the parts of the page that gradio has no component for: table and colour bar."""

from html import escape
from typing import List, NamedTuple, Sequence, Tuple

from .explain import ColorBar


class Table(NamedTuple):
    """Table with column headings, rows, and the RGB colour of each row's class."""

    heads: List[str]
    rows: List[list]
    colors: List[Sequence[int]]


def table_html(table: Table) -> str:
    """Return a table whose rows begin with the colour of their class.

    Example:
        >>> table_html(Table(['class'], [['a < b']], [(255, 0, 0)]))
        '<table><tr><th>class</th></tr><tr><td><i style="background: rgb(255,0,0)"></i>a &lt; b\
</td></tr></table>'
    """
    lines = [''.join(f'<th>{escape(head)}</th>' for head in table.heads)]
    for (name, *others), color in zip(table.rows, table.colors):
        swatch = f'<i style="background: {_css(color)}"></i>'
        cells = ''.join(f'<td>{escape(str(value))}</td>' for value in others)
        lines.append(f'<td>{swatch}{escape(str(name))}</td>{cells}')
    return f'<table>{"".join(f"<tr>{line}</tr>" for line in lines)}</table>'


def bar_html(bar: ColorBar) -> str:
    """Return a colour bar with the values below it."""
    gradient = ', '.join(map(_css, bar.colors))
    return (
        f'<div class="bar" style="background: linear-gradient(to right, {gradient})"></div>'
        f'<div class="ticks">{"".join(map(_tick, bar.ticks))}</div>'
    )


def _tick(tick: Tuple[float, str]) -> str:
    place, text = tick
    percent = f'{100 * place:.1f}%'
    return f'<span style="left: {percent}; transform: translateX(-{percent})">{escape(text)}</span>'


def _css(color: Sequence[int]) -> str:
    return f'rgb({",".join(map(str, color))})'
