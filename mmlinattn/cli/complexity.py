"""Print parameters and multiply-accumulates of the model of a config, by module."""

import argparse
from pathlib import Path

from rich.table import Table

from ..analysis import Complexity, Cost, analyse
from ..analysis.complexity import check_shape
from ..engine import build_model
from ..engine.config import load_image_config
from ..utils import check_writable, write_json
from ..utils.command_line import plain_console


def table(result: Complexity, title: str, depth: int) -> Table:
    out = Table(
        title=title,
        caption='M: million parameters. G: billion multiply-accumulates. '
        'With norms: also resizing and adaptive pooling, as fvcore counts.',
    )
    out.add_column('module', no_wrap=True)
    for name in ('parameters M', 'convolution + linear G', 'all matrix products G', 'with norms G'):
        out.add_column(name, justify='right')

    def row(name: str, cost: Cost, **options) -> None:
        numbers = cost.params / 1e6, cost.conv_linear / 1e9, cost.total / 1e9, cost.extended / 1e9
        out.add_row(name, *(f'{number:.2f}' for number in numbers), **options)

    row('(all)', result, style='bold', end_section=True)
    for name, cost in result.modules(depth).items():
        row(name, cost)
    return out


def main(args: argparse.Namespace) -> int:
    shape = check_shape(args.shape)
    if args.json:
        check_writable(args.json)
    result = analyse(build_model(load_image_config(args.config, args.cfg_options)), shape)
    if args.json:
        write_json(args.json, result.to_dict())
    console = plain_console()
    height, width = result.shape
    console.print(table(result, f'{Path(args.config).stem}, {height} x {width}', args.depth))
    if result.uncounted:
        console.print(f'Not counted, may hold products: {result.uncounted}', style='red')
    return 0
