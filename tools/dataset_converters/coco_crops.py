#!/usr/bin/env python
"""Crop the objects of a detection set in COCO format to a classification set in ImageNet layout.

OUT/train is made from SOURCE/annotations/train.json, OUT/val from val.json and, if it exists,
test.json.
"""

import argparse
from pathlib import Path

from mmlinattn.datasets.crops import crop_objects
from mmlinattn.utils.command_line import errors_in_one_line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add('source', type=Path, help='folder with images/ and annotations/{train,val}.json')
    add('out', type=Path, help='folder to create')
    add('--size', type=int, default=64, help='side of a crop in pixels')
    add('--scale', type=float, default=1.25, help='side of a crop over the longer side of its box')
    add('--max-per-class', type=int, help='of the training split, drawn at random')
    add('--max-per-class-val', type=int, help='of the validation split')
    add('--seed', type=int, default=0)
    args = parser.parse_args()
    held_out = ['val'] + ['test'] * (args.source / 'annotations/test.json').is_file()
    splits = dict(train=['train'], val=held_out)
    limits = dict(train=args.max_per_class, val=args.max_per_class_val)
    limits = {split: most for split, most in limits.items() if most is not None}
    with errors_in_one_line():
        root = crop_objects(args.source, args.out, splits, args.size, args.scale, limits, args.seed)
    print(f'crops are in {root}')


if __name__ == '__main__':
    main()
