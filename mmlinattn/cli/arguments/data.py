"""Arguments of commands on data sets and checkpoint files."""

from argparse import Namespace
from pathlib import Path
from typing import List, Optional

from ...utils.command_line import Parser
from .common import CONFIG

SPLITS = ('train', 'val', 'test')
SOURCES = (
    'clip', 'convit', 'cvt', 'deit', 'deit3', 'dinov2', 'dinov3', 'mala', 'mit', 'mlla', 'rala',
    'siglip', 'smca', 'swin', 'timesformer', 'vil', 'vit', 'vittt',
)  # fmt: skip


def check_data(argv: Optional[List[str]] = None) -> Namespace:
    """Read every image, video and annotation of a config's data sets, and report errors in them.

    Exit code 0: nothing found, 1: findings, 2: the config or its folders cannot be used.
    """
    parser = Parser('check-data', check_data.__doc__, config=CONFIG)
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
    return parser.parse_args(argv)


def convert(argv: Optional[List[str]] = None) -> Namespace:
    """Convert released weights to a file that MMEngine loads."""
    parser = Parser('convert', convert.__doc__)
    add = parser.add_argument
    add('src', metavar='SRC', help='released file: a path or an https address')
    add('dst', metavar='DST', type=Path, help='file to write (.pth, .safetensors)')
    add('--source', choices=SOURCES,
        help='the release; without it rala or mala, by the classifier in SRC')  # fmt: skip
    add('--prefix', metavar='P',
        help="keep the weights whose names begin with P and cut P and torch.compile's _orig_mod. "
        "off; other names stay")  # fmt: skip
    add('--any-attention', action='store_true',
        help='let RAVLT, MAViT, MLLA, HViTTT, ViL begin another attention with them')  # fmt: skip
    add('--config', help='config of the model that the weights are for')
    add('--force', action='store_true', help='overwrite DST')
    return parser.parse_args(argv)
