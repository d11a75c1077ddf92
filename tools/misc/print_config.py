#!/usr/bin/env python
"""Print a config with all inherited settings."""

from mmlinattn.engine.config import load_config
from mmlinattn.utils.command_line import Parser, errors_in_one_line


def main() -> None:
    parser = Parser(cfg_options=True, description=__doc__)
    parser.add_argument('config', help='config file')
    parser.add_argument('--save-path', help='write the config to this .py, .json or .yml file')
    args = parser.parse_args()
    if args.save_path and not args.save_path.endswith(('.py', '.json', '.yml')):
        parser.error(f'--save-path must end with .py, .json or .yml, got {args.save_path!r}')
    with errors_in_one_line(args.debug):
        cfg = load_config(args.config, args.cfg_options)
        print(cfg.pretty_text)
        if args.save_path:
            cfg.dump(args.save_path)


if __name__ == '__main__':
    main()
