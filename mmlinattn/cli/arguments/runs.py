"""Arguments of training, testing and distillation."""

from argparse import ArgumentTypeError, Namespace
from typing import List, Optional, Tuple, Union

from ...utils.command_line import Overrides, Parser
from .common import CHECKPOINT, CONFIG, check_positive, parse_with_launcher

EXPORTED = ('.onnx',)  # suffixes of exported files


def train(argv: Optional[List[str]] = None) -> Namespace:
    """Train a detector, segmentor or classifier from a config."""
    parser = Parser('train', train.__doc__, config=CONFIG)
    add = parser.add_argument
    add('--resume', nargs='?', const='auto',
        help='checkpoint to resume from; without a value, the newest in the work directory'
        )  # fmt: skip
    add('--amp', action='store_true', help='mixed precision')
    add('--auto-scale-lr', action='store_true',
        help="scale the learning rate to the batch size, from the config's auto_scale_lr"
        )  # fmt: skip
    return _parse_run(parser, argv)


def test(argv: Optional[List[str]] = None) -> Namespace:
    """Test a checkpoint or an exported file.

    Scores: mAP for detectors, mIoU for segmentors, accuracy for classifiers.
    """
    parser = Parser('test', test.__doc__, config=CONFIG)
    add = parser.add_argument
    add('checkpoint', help=f'checkpoint file, or {", ".join(EXPORTED)}')
    add('--out', help='write the predictions to this .pkl file')
    add('--show-dir', help='write pictures: ground truth beside predictions')
    add('--tta', action='store_true',
        help='test-time augmentation: tta_pipeline and tta_model of the config, else a horizontal '
        'flip')  # fmt: skip
    args = _parse_run(parser, argv)
    if args.out is not None and not args.out.endswith(('.pkl', '.pickle')):
        parser.error(f'--out must end with .pkl or .pickle, got {args.out!r}')
    if args.tta and args.checkpoint.lower().endswith(EXPORTED):
        parser.error(f'--tta needs a checkpoint, got {args.checkpoint!r}')
    return args


def _parse_run(parser: Parser, argv: Optional[List[str]]) -> Namespace:
    """Add the options that training and testing share, and parse."""
    parser.add_argument('--work-dir', help='where logs, checkpoints and metrics go')
    return parse_with_launcher(parser, argv)


def linearize(argv: Optional[List[str]] = None) -> Namespace:
    """Turn a trained softmax model into one of linear cost, without labels.

    Phase A trains the new attentions to give the outputs of the teacher's. Phase B trains the parts
    that have them, backbone or encoder, to give the tensors that the rest of the model reads; the
    rest stays as it is. The result is an ordinary config and checkpoint: docs/linearize.md.
    """
    parser = Parser('linearize', linearize.__doc__, config=CONFIG)
    add = parser.add_argument
    add('checkpoint', help=f'weights of the trained model: {CHECKPOINT}')
    add('--out', required=True, metavar='DIR', help='new folder for config, weights and report')
    add(
        '--images',
        metavar='DIR',
        help='images without labels, searched recursively (training images of the config)',
    )
    add('--attn', default='MALA', help='linear attention (%(default)s)')
    add('--attn-options', nargs='+', action=Overrides, metavar='KEY=VALUE',
        help='options of the attention, such as num_anchors=64')  # fmt: skip
    add('--keep-softmax', type=_layers, default=(), metavar='LAYERS',
        help='layers that keep their attention, from 0 over all stages and on over the '
        'encoder of SMCA: 3,7,last4')  # fmt: skip
    add('--iters-a', type=int, default=1000, metavar='N', help='of phase A (%(default)s)')
    add('--iters-b', type=int, default=4000, metavar='N', help='of phase B (%(default)s)')
    add('--lr-a', type=float, default=1e-3, metavar='LR', help='of AdamW in A (%(default)s)')
    add('--lr-b', type=float, default=3e-4, metavar='LR', help='of AdamW in B (%(default)s)')
    add('--batch-size', type=int, default=8, metavar='N',
        help='images a process in A and B (%(default)s)')  # fmt: skip
    add('--crop-size', nargs=2, type=int, metavar=('H', 'W'),
        help='random crops in A and B; default: what the test pipeline gives')  # fmt: skip
    add('--finetune', action='store_true',
        help='phase C: train with labels, by data and schedule of the config')  # fmt: skip
    add('--no-score', action='store_true', help='no scores on the validation data of the config')
    add('--seed', type=int, default=0)
    add('--amp', action='store_true', help='mixed precision')
    add('--resume', action='store_true', help='continue an interrupted run in --out')
    args = parse_with_launcher(parser, argv)
    check_positive(parser, args, 'lr_a', 'lr_b', 'batch_size', 'crop_size')
    check_positive(parser, args, 'iters_a', 'iters_b', 'seed', or_zero=True)
    if args.seed >= 2**32:
        parser.error(f'--seed must be below 2**32, as NumPy takes it, got {args.seed}')
    return args


def _layers(text: str) -> Tuple[Union[int, str], ...]:
    """Return the layers of ``'3,7,last4'``."""
    words = [word.strip() for word in text.split(',')]
    for word in words:
        if not (word.isdecimal() or word.removeprefix('last').isdecimal()):
            raise ArgumentTypeError(f'{word!r} is neither a layer number nor lastN, in {text!r}')
    return tuple(int(word) if word.isdecimal() else word for word in words)
