"""Crop the objects of a detection set in COCO format to a classification set in ImageNet layout."""

import argparse

from ..datasets.crops import crop_objects
from ..utils.command_line import errors_in_one_line


def main(args: argparse.Namespace) -> int:
    held_out = ['val'] + ['test'] * (args.source / 'annotations/test.json').is_file()
    limits = None if args.max_per_class is None else dict(train=args.max_per_class)
    with errors_in_one_line(args.debug):
        root = crop_objects(
            args.source, args.out, dict(train=['train'], val=held_out),
            args.size, args.scale, limits, args.seed,
        )  # fmt: skip
    print(f'crops are in {root}')
    return 0
