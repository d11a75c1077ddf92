#!/usr/bin/env python
"""Prints a config with everything that it inherits."""

import argparse

from mmengine.config import DictAction

from mmlinattn.engine import launch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('config', help='config file')
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=DictAction,
        help='override settings of the config, as a.b.c=value ...',
    )
    parser.add_argument('--save-path', help='write the config to this .py, .json or .yml file')
    args = parser.parse_args()
    if args.save_path and not args.save_path.endswith(('.py', '.json', '.yml')):
        parser.error(f'--save-path must end with .py, .json or .yml, got {args.save_path!r}')
    cfg = launch.load_config(args.config, args.cfg_options)
    print(cfg.pretty_text)
    if args.save_path:
        cfg.dump(args.save_path)


if __name__ == '__main__':
    main()
