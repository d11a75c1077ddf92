"""Arguments of commands on checkpoint files."""

import re
from argparse import Namespace
from pathlib import Path
from typing import List, Optional

from ...utils.command_line import Parser
from .common import CHECKPOINT, CONFIG

SOURCES = (
    'clip',
    'convit',
    'cvt',
    'deit',
    'deit3',
    'dinov2',
    'dinov3',
    'mala',
    'mit',
    'mlla',
    'rala',
    'siglip',
    'smca',
    'swin',
    'timesformer',
    'vil',
    'vit',
)


def convert(argv: Optional[List[str]] = None) -> Namespace:
    """Convert released weights to a file that MMEngine loads."""
    parser = Parser('convert', convert.__doc__)
    add = parser.add_argument
    add('src', metavar='SRC', help='released file: a path or an https address')
    add('dst', metavar='DST', type=Path, help='file to write (.pth, .safetensors)')
    add('--source', choices=SOURCES,
        help='the release; without it rala or mala, by the classifier in SRC')  # fmt: skip
    add('--any-attention', action='store_true',
        help='let a RAVLT, MAViT or MLLA with another attention begin with them')  # fmt: skip
    add('--config', help='config of the model that the weights are for')
    add('--force', action='store_true', help='overwrite DST')
    return parser.parse_args(argv)


def publish(argv: Optional[List[str]] = None) -> Namespace:
    """Write the weights of a trained model for others, with an entry for a metafile.

    The published file itself is scored on the test data of the config.
    """
    parser = Parser('publish', publish.__doc__, cfg_options=True)
    add = parser.add_argument
    add('config', help=CONFIG)
    add('checkpoint', help=CHECKPOINT)
    add('out', metavar='DIR', type=Path, help='writes DIR/NAME-SHA256.pth and DIR/NAME.yml')
    add('--name', help="default: the config's")
    add('--keep-precision', action='store_true', help='of the weights, instead of float16')
    add('--dataset', metavar='TEXT', help='name of the test data in the entry; default: its class')
    add('--license', metavar='TEXT', help='terms of the weights; the data may have terms, too')
    add('--no-score', action='store_true', help='do not test, for example without the test data')
    add('--force', action='store_true', help='replace the model of this name in DIR')
    args = parser.parse_args(argv)
    if args.name is not None and not re.fullmatch(r'[\w.+-]+', args.name):
        parser.error(f'--name must have letters, digits and . _ + - only, got {args.name!r}')
    return args


def consolidate(argv: Optional[List[str]] = None) -> Namespace:
    """Merge a sharded checkpoint of FSDP2Strategy into one file."""
    parser = Parser('consolidate', consolidate.__doc__)
    add = parser.add_argument
    add('src', metavar='SRC', help='the file, with its folder of shards beside it')
    add('dst', metavar='DST', type=Path, help='file to write')
    add('--weights-only', action='store_true', help='without the state that resuming needs')
    return parser.parse_args(argv)
