#!/usr/bin/env python
"""Print the memory of parameters, gradients and optimizer state per process."""

from rich.table import Table

from mmlinattn.analysis.training_memory import gathered_parameters, training_memory
from mmlinattn.engine import build_model
from mmlinattn.engine.config import load_config
from mmlinattn.utils.command_line import Parser, errors_in_one_line, plain_console

MiB = 2**20


def main() -> None:
    parser = Parser(cfg_options=True, description=__doc__)
    parser.add_argument('config', help='config file, of any of the three frameworks')
    parser.add_argument(
        '--processes', nargs='+', type=int, default=[1, 2, 4, 8], metavar='N',
        help='over how many processes FSDP2Strategy spreads the model; 1 is DDP',
    )  # fmt: skip
    parser.add_argument(
        '--shard', nargs='+', default=[], metavar='CLASS',
        help='as in the strategy: prints what is gathered at once, too',
    )  # fmt: skip
    args = parser.parse_args()
    with errors_in_one_line(args.debug):
        cfg = load_config(args.config, args.cfg_options)
        found = training_memory(cfg, args.processes)
        gathered = gathered_parameters(build_model(cfg), args.shard) if args.shard else {}
    table = Table(caption='MiB in the first process, without activations')
    for name in ('processes', *next(iter(found.values())), 'together'):
        table.add_column(name, justify='right')
    for number, parts in found.items():
        sizes = [*parts.values(), sum(parts.values())]
        table.add_row(str(number), *(f'{size / MiB:.3f}' for size in sizes))
    plain_console().print(table)
    for name, size in gathered.items():
        print(f'gathered, float32, {name}: {size / MiB:.3f} MiB')


if __name__ == '__main__':
    main()
