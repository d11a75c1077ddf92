"""Arguments of training and testing."""

from argparse import Namespace
from typing import List, Optional

from ...utils.command_line import Parser
from .common import CONFIG, parse_with_launcher

EXPORTED = ('.onnx',)  # suffixes of exported files


def train(argv: Optional[List[str]] = None) -> Namespace:
    """Train a detector, segmentor or classifier from a config."""
    parser = Parser('train', train.__doc__, cfg_options=True)
    add = parser.add_argument
    add('config', help=CONFIG)
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
    parser = Parser('test', test.__doc__, cfg_options=True)
    add = parser.add_argument
    add('config', help=CONFIG)
    add('checkpoint', help=f'checkpoint file, or {", ".join(EXPORTED)}')
    add('--out', help='write the predictions to this .pkl file')
    add('--show-dir', help='write pictures: ground truth beside predictions')
    add('--tta', action='store_true',
        help='test-time augmentation: tta_pipeline and tta_model of the config, else a horizontal '
        'flip')  # fmt: skip
    args = _parse_run(parser, argv)
    if args.out is not None and not args.out.endswith(('.pkl', '.pickle')):
        parser.error(f'--out must end with .pkl or .pickle, got {args.out!r}')
    if args.tta and args.checkpoint.endswith(EXPORTED):
        parser.error(f'--tta needs a checkpoint, got {args.checkpoint!r}')
    return args


def _parse_run(parser: Parser, argv: Optional[List[str]]) -> Namespace:
    """Add the options that training and testing share, and parse."""
    parser.add_argument('--work-dir', help='where logs, checkpoints and metrics go')
    return parse_with_launcher(parser, argv)
