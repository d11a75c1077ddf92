"""Print a config with all inherited settings."""

import argparse

from ..analysis.hybrids import resolve_hybrids
from ..engine.config import load_config
from ..utils.command_line import errors_in_one_line, print_text


def main(args: argparse.Namespace) -> int:
    with errors_in_one_line(args.debug):
        cfg = load_config(args.config, args.cfg_options)
        resolve_hybrids(cfg)
        print_text(cfg.pretty_text)
        if args.save_path:
            cfg.dump(args.save_path)
    return 0
