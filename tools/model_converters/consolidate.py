#!/usr/bin/env python
"""Merge a sharded checkpoint of FSDP2Strategy into one file."""

import argparse
import sys
from pathlib import Path

from mmlinattn.checkpoints import CheckpointError, consolidate


def main() -> int:
    parser = argparse.ArgumentParser(prog='consolidate.py', description=__doc__)
    parser.add_argument('src', metavar='SRC', help='the file, with its folder of shards beside it')
    parser.add_argument('dst', metavar='DST', type=Path, help='file to write')
    parser.add_argument(
        '--weights-only', action='store_true', help='without the state that resuming needs'
    )
    args = parser.parse_args()
    try:
        consolidate(args.src, args.dst, args.weights_only)
    except (CheckpointError, FileNotFoundError) as error:
        print(f'error: {error}', file=sys.stderr)
        return 2
    print(f'{args.dst}: {args.dst.stat().st_size / 2**20:.1f} MiB')
    return 0


if __name__ == '__main__':
    sys.exit(main())
