"""Arguments of commands that report on a model, a config or this machine."""

from argparse import Namespace
from pathlib import Path
from typing import List, Optional

from ...utils.command_line import Parser
from .common import CHECKPOINT, CONFIG, DEVICE, check_positive

LEAST_TOLERANCE = 1e-6
PRECISIONS = ('fp32', 'bf16', 'fp16')


def complexity(argv: Optional[List[str]] = None) -> Namespace:
    """Print parameters and multiply-accumulates of the model of a config, by module."""
    parser = Parser('analyze complexity', complexity.__doc__, config=CONFIG)
    add = parser.add_argument
    add('--shape', nargs=2, type=int, required=True, metavar=('H', 'W'))
    add('--depth', type=int, default=3, help='of the modules in the table')
    add('--json', type=Path, metavar='FILE', help='also write the numbers there')
    args = parser.parse_args(argv)
    check_positive(parser, args, 'depth', or_zero=True)
    return args


def rank(argv: Optional[List[str]] = None) -> Namespace:
    """Measure rank and singular values of what the attentions of a backbone compute, by layer.

    The matrices are the output of each head (N x d) and that of the layer (N x C). Linear
    attentions also have the sum over the keys (d x d a head). Writes rank.json and rank.png to DIR.
    """
    parser = Parser('analyze rank', rank.__doc__, config=CONFIG)
    add = parser.add_argument
    add('checkpoint', nargs='?', help=f'{CHECKPOINT}; without one the weights are untrained')
    add('--images', metavar='DIR', help='images, searched recursively; without: random noise')
    add('--num-images', type=int, default=8, metavar='N',
        help='evenly spaced ones of DIR, or of noise (%(default)s)')  # fmt: skip
    add('--shape', nargs=2, type=int, metavar=('H', 'W'), help='of the noise')
    add('--tolerance', type=float, default=0.01, metavar='X',
        help='the rank counts singular values above X times the largest (%(default)s)')  # fmt: skip
    add('--seed', type=int, default=0, help='of initial weights and noise')
    add('--device', help=DEVICE)
    add('--out', type=Path, default=Path('work_dirs/rank'), metavar='DIR')
    args = parser.parse_args(argv)
    check_positive(parser, args, 'num_images')
    if bool(args.images) == bool(args.shape):
        parser.error('give either --images DIR, or --shape H W of random noise')
    if not LEAST_TOLERANCE <= args.tolerance < 1:
        parser.error(
            f'--tolerance must be at least {LEAST_TOLERANCE:g}, the rounding of float32, and below '
            f'1, got {args.tolerance:g}'
        )
    return args


def throughput(argv: Optional[List[str]] = None) -> Namespace:
    """Measure the images a second of the model of a config, with initial weights.

    The model runs on random images, without pre- and post-processing, as often as a sixth of
    --limit allows, but three times at least.
    Exit code 1: a batch size takes too long or too much memory; the others are measured.
    """
    parser = Parser('analyze throughput', throughput.__doc__, config=CONFIG)
    add = parser.add_argument
    add('--batch-size', nargs='+', type=int, default=[64, 1], metavar='N', help='default: 64 1')
    add('--shape', nargs=2, type=int, required=True, metavar=('H', 'W'))
    add('--backbone', action='store_true', help='the backbone alone')
    add('--precision', choices=PRECISIONS, default='fp32', help='bf16 and fp16 are autocast')
    add('--device', help=DEVICE)
    add('--threads', type=int, metavar='N', help="of the processor; default: torch's")
    add('--limit', type=float, default=60.0, metavar='S',
        help='most seconds of a batch size (%(default)g)')  # fmt: skip
    add('--json', type=Path, metavar='FILE', help='also write the numbers there')
    args = parser.parse_args(argv)
    check_positive(parser, args, 'threads', 'limit')
    if min(args.batch_size) < 1:
        parser.error(f'--batch-size must be positive, got {min(args.batch_size)}')
    return args


def visualize_attention(argv: Optional[List[str]] = None) -> Namespace:
    """Draw the attention maps of the decoder of an SMCA detector."""
    parser = Parser(
        'analyze attention', visualize_attention.__doc__, config='config file of an SMCA detector'
    )
    add = parser.add_argument
    add('checkpoint', help=CHECKPOINT)
    add('image', type=Path, help='image file')
    add('--out-dir', type=Path, default=Path('work_dirs/attention'))
    add('--queries', type=int, default=4, help='how many, best first')
    add('--device', help=DEVICE)
    args = parser.parse_args(argv)
    check_positive(parser, args, 'queries')
    if not args.image.is_file():
        missing = 'is a folder' if args.image.is_dir() else 'does not exist'
        parser.error(f'image {str(args.image)!r} {missing}')
    return args


def visualize_key_weights(argv: Optional[List[str]] = None) -> Namespace:
    """Draw the weights of all keys for one query of an image.

    mmlinattn analyze key-weights CONFIG CHECKPOINT IMAGE [--layer 2]

    The model is a detector, segmentor or classifier whose backbone takes attn_cfg. Several
    checkpoints of one config, such as those of `make zoo`, are compared with
    --checkpoints FILE ...; --attentions NAME ... compares attentions without trained weights, and
    each picture of those says untrained. Without names, those that the backbone does not support
    are left out, and the reason is printed.
    """
    parser = Parser('analyze key-weights', visualize_key_weights.__doc__, config=CONFIG)
    add = parser.add_argument
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


def doctor(argv: Optional[List[str]] = None) -> Namespace:
    """Report versions, mmcv's operators, GPU, kernels and data sets of this machine.

    Exit code 1: training cannot work, because a framework is missing or its import fails; with
    ``--gpu``: a kernel fails on this GPU.
    """
    parser = Parser('doctor', doctor.__doc__)
    parser.add_argument(
        '--gpu',
        action='store_true',
        help='check the Triton kernels of every operator on this GPU, and time them',
    )
    return parser.parse_args(argv)
