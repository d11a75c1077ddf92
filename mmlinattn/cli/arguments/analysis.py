"""Arguments of commands that report on a model, a config or this machine."""

from argparse import Namespace
from pathlib import Path
from typing import List, Optional

from ...utils.command_line import Parser
from .common import CHECKPOINT, CONFIG, DEVICE, check_not_negative, check_positive

GPUS = ('v100', 'a100', 'h100', 'h200', 'rtx4090')
LEAST_TOLERANCE = 1e-6
PRECISIONS = ('fp32', 'bf16', 'fp16')
EFFICIENCY = ('compute', 'mixed', 'bandwidth', 'link', 'launch')


def complexity(argv: Optional[List[str]] = None) -> Namespace:
    """Print parameters and multiply-accumulates of the model of a config, by module."""
    parser = Parser('complexity', complexity.__doc__, cfg_options=True)
    add = parser.add_argument
    add('config', help=CONFIG)
    add('--shape', nargs=2, type=int, required=True, metavar=('H', 'W'))
    add('--depth', type=int, default=3, help='of the modules in the table')
    add('--json', type=Path, metavar='FILE', help='also write the numbers there')
    args = parser.parse_args(argv)
    check_not_negative(parser, args, 'depth')
    return args


def estimate(argv: Optional[List[str]] = None) -> Namespace:
    """Estimate time and memory of a training on other machines: docs/estimates.md.

    With --processes it prints instead the exact memory of parameters, gradients and optimizer
    state of a process, without activations.
    """
    parser = Parser('estimate', estimate.__doc__, cfg_options=True)
    add = parser.add_argument
    add('config', help=CONFIG)
    add('--gpus', type=int, default=8, metavar='N', help='in all machines (8)')
    add('--gpu', choices=GPUS, default='h100', help='default: h100')
    add('--nodes', type=int, metavar='N', help='machines; default: of eight GPUs each')
    add('--batch', type=int, metavar='N', help="images a GPU; default: the config's")
    add('--precision', help='fp32, tf32, bf16 or fp16; default: fp32, or mixed as in the config')
    add('--strategy', choices=('ddp', 'fsdp2'), help="default: the config's")
    add('--shard', nargs='+', metavar='CLASS', help="of fsdp2; default: the config's")
    add('--checkpointing', nargs='*', metavar='CLASS',
        help="computed again in the backward pass; default: those of the config's strategy"
        )  # fmt: skip
    add('--shape', nargs=2, type=int, metavar=('H', 'W'), help='default: from the pipeline')
    add('--images', type=int, metavar='N',
        help='of an epoch; default: known for COCO, ImageNet, CIFAR')  # fmt: skip
    add('--network', type=float, metavar='GB/S', help='of a GPU between machines, one direction')
    for name in EFFICIENCY:
        what = 'seconds' if name == 'launch' else 'share of the peak'
        add(f'--{name}', type=float, metavar='X', help=f'{what}, see docs/estimates.md')
    add('--processes', nargs='+', type=int, metavar='N',
        help='print the memory of each process when FSDP2Strategy spreads the model over N; '
        '1 is DDP; with --shard also what is gathered at once')  # fmt: skip
    return parser.parse_args(argv)


def rank(argv: Optional[List[str]] = None) -> Namespace:
    """Measure rank and singular values of what the attentions of a backbone compute, by layer.

    The matrices are the output of each head (N x d) and that of the layer (N x C). Linear
    attentions also have the sum over the keys (d x d a head). Writes rank.json and rank.png to DIR.
    """
    parser = Parser('rank', rank.__doc__, cfg_options=True)
    add = parser.add_argument
    add('config', help=CONFIG)
    add('checkpoint', nargs='?', help=f'{CHECKPOINT}; without one the weights are untrained')
    add('--images', metavar='DIR', help='images, searched recursively; default: random noise')
    add('--num-images', type=int, default=8, metavar='N',
        help='evenly spaced ones of DIR, or of noise (%(default)s)')  # fmt: skip
    add('--shape', nargs=2, type=int, metavar=('H', 'W'),
        help='of the noise; default: from the pipeline')  # fmt: skip
    add('--tolerance', type=float, default=0.01, metavar='X',
        help='the rank counts singular values above X times the largest (%(default)s)')  # fmt: skip
    add('--seed', type=int, default=0, help='of initial weights and noise')
    add('--device', default='cpu', help=DEVICE)
    add('--out', type=Path, default=Path('work_dirs/rank'), metavar='DIR')
    args = parser.parse_args(argv)
    check_positive(parser, args, 'num_images')
    if args.images and args.shape:
        parser.error('--shape is of random noise: images have the size of the test pipeline')
    if not LEAST_TOLERANCE <= args.tolerance < 1:
        parser.error(
            f'--tolerance must be at least {LEAST_TOLERANCE:g}, the rounding of float32, and below '
            f'1, got {args.tolerance:g}'
        )
    return args


def throughput(argv: Optional[List[str]] = None) -> Namespace:
    """Measure the images a second of the model of a config, with initial weights.

    The model runs on random images, without pre- and post-processing, as often as a sixth of
    --limit allows, but three times at least. The speed that its paper reports is printed as well.
    Exit code 1: a batch size takes too long or too much memory; the others are measured.
    """
    parser = Parser('throughput', throughput.__doc__, cfg_options=True)
    add = parser.add_argument
    add('config', help=CONFIG)
    add('--batch-size', nargs='+', type=int, default=[64, 1], metavar='N', help='default: 64 1')
    add('--shape', nargs=2, type=int, metavar=('H', 'W'), help='default: from the pipeline')
    add('--backbone', action='store_true', help='the backbone alone')
    add('--precision', choices=PRECISIONS, default='fp32', help='bf16 and fp16 are autocast')
    add('--device', default='cpu', help=DEVICE)
    add('--threads', type=int, metavar='N', help="of the processor; default: torch's")
    add('--limit', type=float, default=60.0, metavar='S',
        help='most seconds of a batch size (%(default)g)')  # fmt: skip
    add('--json', type=Path, metavar='FILE', help='also write the numbers there')
    args = parser.parse_args(argv)
    check_positive(parser, args, 'threads', 'limit')
    if min(args.batch_size) < 1:
        parser.error(f'--batch-size must be positive, got {min(args.batch_size)}')
    return args


def print_config(argv: Optional[List[str]] = None) -> Namespace:
    """Print a config with all inherited settings."""
    parser = Parser('print-config', print_config.__doc__, cfg_options=True)
    add = parser.add_argument
    add('config', help=CONFIG)
    add('--save-path', help='write the config to this .py, .json or .yml file')
    args = parser.parse_args(argv)
    if args.save_path and not args.save_path.endswith(('.py', '.json', '.yml')):
        parser.error(f'--save-path must end with .py, .json or .yml, got {args.save_path!r}')
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
