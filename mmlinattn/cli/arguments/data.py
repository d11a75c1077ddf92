"""Arguments of commands on data sets."""

import os
from argparse import Namespace
from pathlib import Path
from typing import List, Optional

from ...utils.command_line import Parser
from .common import CONFIG

SPLITS = ('train', 'val', 'test')


def check_data(argv: Optional[List[str]] = None) -> Namespace:
    """Read every image and annotation of a config's data sets, and report errors in them.

    Exit code 0: nothing found, 1: findings, 2: the config or its folders cannot be used.
    """
    parser = Parser('check-data', check_data.__doc__, cfg_options=True)
    parser.add_argument('config', help=CONFIG)
    parser.add_argument('--splits', nargs='+', choices=SPLITS, default=SPLITS)
    return parser.parse_args(argv)


def shapes(argv: Optional[List[str]] = None) -> Namespace:
    """Write the Shapes data set in the layouts of COCO, ADE20K, Cityscapes and ImageNet.

    The same options give the same files. The exit code is 2 for a bad argument, an existing root
    or a failure to write. It is 130 or 143 for an interrupt, after which no files remain.
    """
    parser = Parser('shapes', shapes.__doc__)
    add = parser.add_argument
    add('root', nargs='?', default='data/shapes', help='directory to create (%(default)s)')
    add('--num-train', type=int, default=600, help='number of training images (%(default)s)')
    add('--num-val', type=int, default=150, help='number of validation images (%(default)s)')
    add('--image-size', type=int, default=128,
        help='side of the square images in pixels, at least 32 (%(default)s)')  # fmt: skip
    add('--seed', type=int, default=0, help='seed of all randomness (%(default)s)')
    add('--workers', type=int, default=os.cpu_count(), help='processes (%(default)s)')
    return parser.parse_args(argv)


def moving_shapes(argv: Optional[List[str]] = None) -> Namespace:
    """Write the Moving Shapes videos, whose classes only the order of frames tells.

    The same options give the same frames. The exit code is 2 for a bad argument, an existing root
    or a failure to write.
    """
    parser = Parser('moving-shapes', moving_shapes.__doc__)
    add = parser.add_argument
    add('root', nargs='?', default='data/moving_shapes', help='folder to create (%(default)s)')
    add('--num-train', type=int, default=800, help='number of training videos (%(default)s)')
    add('--num-val', type=int, default=200, help='number of validation videos (%(default)s)')
    add('--size', type=int, default=32, help='side of the frames in pixels, even (%(default)s)')
    add('--num-frames', type=int, default=16, help='frames, a multiple of 8 (%(default)s)')
    add('--seed', type=int, default=0, help='seed of all randomness (%(default)s)')
    return parser.parse_args(argv)


def coco_crops(argv: Optional[List[str]] = None) -> Namespace:
    """Crop the objects of a detection set in COCO format to a classification set.

    The result has the ImageNet layout. OUT/train is made from annotations/train.json, OUT/val from
    val.json and, if it exists, test.json.
    """
    parser = Parser('coco-crops', coco_crops.__doc__)
    add = parser.add_argument
    add('source', type=Path, help='folder with images/ and annotations/{train,val}.json')
    add('out', type=Path, help='folder to create')
    add('--size', type=int, default=64, help='side of a crop in pixels')
    add('--scale', type=float, default=1.25, help='side of a crop over the longer side of its box')
    add('--max-per-class', type=int, help='of the training split, drawn at random')
    add('--seed', type=int, default=0)
    return parser.parse_args(argv)
