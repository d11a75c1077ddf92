"""Arguments of commands on data sets."""

import os
from argparse import Namespace
from pathlib import Path
from typing import List, Optional

from ...utils.command_line import Parser
from .common import CONFIG, check_not_negative, check_positive

SPLITS = ('train', 'val', 'test')


def check_data(argv: Optional[List[str]] = None) -> Namespace:
    """Read every image and annotation of a config's data sets, and report errors in them.

    Exit code 0: nothing found, 1: findings, 2: the config or its folders cannot be used.
    """
    parser = Parser('check-data', check_data.__doc__, cfg_options=True)
    add = parser.add_argument
    add('config', help=CONFIG)
    add('--splits', nargs='+', choices=SPLITS, default=SPLITS)
    add('--workers', type=int, default=os.cpu_count(), help='processes')
    add('--examples', type=int, default=3, help='shown of each kind')
    add('--json', type=Path, metavar='FILE', help='also write all findings there')
    args = parser.parse_args(argv)
    check_positive(parser, args, 'workers')
    check_not_negative(parser, args, 'examples')
    return args


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
    add('--force', action='store_true',
        help='write anew if root is a Shapes set or empty; anything else is never touched'
        )  # fmt: skip
    return parser.parse_args(argv)


def to_shards(argv: Optional[List[str]] = None) -> Namespace:
    """Write the data sets of a config as shards: OUT/SPLIT-000000.tar, ... and OUT/SPLIT.json.

    The training set is written in random order. Run the command again to continue after an
    interruption.
    """
    parser = Parser('to-shards', to_shards.__doc__, cfg_options=True)
    add = parser.add_argument
    add('config', help=CONFIG)
    add('out', type=Path, help='folder of the shards')
    add('--splits', nargs='+', choices=SPLITS, default=('train', 'val'))
    add('--shard-mib', type=int, default=256, help='size of a shard in MiB')
    add('--in-order', action='store_true', help='the training set, too, in its own order')
    return parser.parse_args(argv)
