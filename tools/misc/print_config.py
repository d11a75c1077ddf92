#!/usr/bin/env python
"""Print a config, given as a file or by its name in configs/, with all inherited settings."""

import argparse

from mmlinattn.engine.config import load_config
from mmlinattn.utils.command_line import Overrides, errors_in_one_line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('config')
    parser.add_argument('--cfg-options', nargs='+', action=Overrides, metavar='KEY=VALUE')
    args = parser.parse_args()
    with errors_in_one_line():
        print(load_config(args.config, args.cfg_options).pretty_text)


if __name__ == '__main__':
    main()
