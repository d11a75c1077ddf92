"""Merge a sharded checkpoint of FSDP2Strategy into one file."""

import argparse

from ..checkpoints import CheckpointError, consolidate
from ..utils import WriteError, check_writable
from ..utils.command_line import errors_in_one_line


def main(args: argparse.Namespace) -> int:
    with errors_in_one_line(args.debug, (CheckpointError, FileNotFoundError, WriteError)):
        check_writable(args.dst)
        consolidate(args.src, args.dst, args.weights_only)
    print(f'{args.dst}: {args.dst.stat().st_size / 2**20:.1f} MiB')
    return 0
