"""Arguments of the commands that draw attentions."""

from argparse import Namespace
from pathlib import Path
from typing import List, Optional

from ...utils.command_line import Parser
from .common import CHECKPOINT, CONFIG, DEVICE, check_positive


def visualize_attention(argv: Optional[List[str]] = None) -> Namespace:
    """Draw the attention maps of the decoder of an SMCA detector."""
    parser = Parser('analyze attention', visualize_attention.__doc__, cfg_options=True)
    add = parser.add_argument
    add('config', help='config file of an SMCA detector')
    add('checkpoint', help=CHECKPOINT)
    add('image', type=Path, help='image file')
    add('--out-dir', type=Path, default=Path('work_dirs/attention'))
    add('--queries', type=int, default=4, help='how many, best first')
    add('--device', help=DEVICE)
    args = parser.parse_args(argv)
    check_positive(parser, args, 'queries')
    if not args.image.is_file():
        parser.error(f'image {str(args.image)!r} does not exist')
    return args


def visualize_key_weights(argv: Optional[List[str]] = None) -> Namespace:
    """Draw the weights of all keys for one query of an image.

    mmlinattn analyze key-weights CONFIG CHECKPOINT IMAGE [--layer 2]

    The model is a detector, segmentor or classifier whose backbone takes attn_cfg. Several
    checkpoints of one config, such as those of `make zoo`, are compared with
    --checkpoints FILE ...; --attentions NAME ... compares attentions without trained weights, and
    each picture of those says untrained. Attentions that the backbone does not support are left
    out, and the reason is printed.
    """
    parser = Parser('analyze key-weights', visualize_key_weights.__doc__, cfg_options=True)
    add = parser.add_argument
    add('config', help=CONFIG)
    add('checkpoint', nargs='?', help=f'{CHECKPOINT}; without one the weights are untrained')
    add('image', nargs='?', type=Path, help='image file; default: a photograph of matplotlib')
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument('--checkpoints', nargs='+', default=[], metavar='FILE',
                       help='of the same config, each with its own attention')  # fmt: skip
    kinds.add_argument('--attentions', nargs='+', metavar='NAME', help='untrained; default: all')
    add('--image', type=Path, dest='image_option', metavar='IMAGE', help='without a checkpoint')
    add('--size', type=int, nargs=2, metavar=('W', 'H'),
        help='of the image; default: its own up to 640 with CHECKPOINT, else 160 192')  # fmt: skip
    add('--position', type=int, nargs=2, metavar=('X', 'Y'), help='pixel of the query')
    add('--layer', type=int, default=0, help='which attention of the backbone, in its order')
    add('--seed', type=int, default=0, help='of initial weights')
    add('--out', type=Path, default=Path('work_dirs/key_weights.png'))
    args = parser.parse_args(argv)
    if args.checkpoint is not None and (args.checkpoints or args.attentions):
        parser.error('CHECKPOINT goes with neither --checkpoints nor --attentions')
    args.image = args.image or args.image_option
    check_positive(parser, args, 'size')
    files = [path for path in args.checkpoints if '://' not in path]
    for path in [args.image] * (args.image is not None) + files:
        if not Path(path).is_file():
            parser.error(f'{str(path)!r} does not exist')
    return args
