"""Arguments of commands on checkpoint files."""

from argparse import Namespace
from pathlib import Path
from typing import List, Optional

from ...utils.command_line import Parser

SOURCES = (
    'clip', 'convit', 'cvt', 'deit', 'deit3', 'dinov2', 'dinov3', 'mala', 'mit', 'mlla', 'rala',
    'siglip', 'smca', 'swin', 'timesformer', 'vil', 'vit', 'vittt',
)  # fmt: skip


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
        help='let RAVLT, MAViT, MLLA or HViTTT with another attention begin with them')  # fmt: skip
    add('--config', help='config of the model that the weights are for')
    add('--force', action='store_true', help='overwrite DST')
    return parser.parse_args(argv)
