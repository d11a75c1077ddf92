"""Write the Moving Shapes videos."""

import argparse
import importlib

from ..utils.command_line import errors_in_one_line


def main(args: argparse.Namespace) -> int:
    options = {name: value for name, value in vars(args).items() if name != 'debug'}
    with errors_in_one_line(args.debug, (OSError, ValueError, ImportError)):
        data = importlib.import_module('mmlinattn.projects.video.moving_shapes')
        root = data.generate_videos(**options)
    print(f'Moving Shapes is in {root}')
    return 0
