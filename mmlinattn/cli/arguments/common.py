"""Arguments that several commands share."""

import os
from argparse import Namespace
from typing import List, Optional

from ...utils.command_line import Parser

CONFIG = 'config file, or the name of one of this package'
CHECKPOINT = 'checkpoint: a file or an address'
DEVICE = 'cpu, cuda, cuda:1, ...; default: the GPU if there is one'


def check_positive(parser: Parser, args: Namespace, *names: str, or_zero: bool = False) -> None:
    """End with an error unless all given numbers are above 0, or at least 0 with ``or_zero``."""
    must = 'not be negative' if or_zero else 'be positive'
    for name in names:
        value = getattr(args, name)
        numbers = value if isinstance(value, (list, tuple)) else [value]
        if not all(n is None or n > 0 or (or_zero and n == 0) for n in numbers):
            given = ' '.join(map(str, numbers))
            parser.error(f'--{name.replace("_", "-")} must {must}, got {given}')


def parse_with_launcher(parser: Parser, argv: Optional[List[str]]) -> Namespace:
    """Add the options of launchers, parse, and set ``LOCAL_RANK`` for MMEngine."""
    launchers = ['none', 'pytorch', 'slurm', 'mpi']
    parser.add_argument('--launcher', choices=launchers, default='none')
    parser.add_argument('--local_rank', '--local-rank', type=int, default=0)
    args = parser.parse_args(argv)
    if args.launcher == 'pytorch' and 'RANK' not in os.environ:
        parser.error(
            '--launcher pytorch needs torchrun, which starts the processes: torchrun '
            f'--nproc-per-node N -m {parser.prog} ... --launcher pytorch (docs/distributed.md)'
        )
    os.environ.setdefault('LOCAL_RANK', str(args.local_rank))
    return args
