"""Arguments that several commands share."""

from argparse import Namespace

from ...utils.command_line import Parser

CONFIG = 'config file, or the name of one of this package'
CHECKPOINT = 'checkpoint: a file or an address'
DEVICE = 'cpu, cuda, cuda:1, ...'


def check_positive(parser: Parser, args: Namespace, *names: str) -> None:
    """End with an error if a numeric option is given and not above 0."""
    for name in names:
        value = getattr(args, name)
        if value is not None and not value > 0:
            parser.error(f'--{name.replace("_", "-")} must be positive, got {value}')
