"""Arguments of prediction and deployment."""

from argparse import Namespace
from pathlib import Path
from typing import List, Optional

from ...utils.command_line import Parser
from .common import CONFIG, DEVICE, check_positive

FORMATS = ('onnx', 'pt2')
MAX_MEGAPIXELS = 50.0
EXAMPLES = Path('demo/nuclei/images')


def predict(argv: Optional[List[str]] = None) -> Namespace:
    """Predict images and folders with the model of a config.

    Writes to DIR: predictions.json in the COCO format; vis/ with a picture per image; for
    segmentors labels/ with indexed PNGs. An image that cannot be read or predicted is reported and
    skipped; the exit code is then 1.
    """
    parser = Parser('predict', predict.__doc__, config=CONFIG)
    add = parser.add_argument
    add('checkpoint', help='checkpoint (file or address), or exported file (.onnx)')
    add('sources', nargs='+', metavar='SOURCE', help='image, or folder with images')
    add('--out', type=Path, default=Path('work_dirs/predictions'), metavar='DIR')
    add('--min-score', type=float, default=0.3, help='objects that are less sure are left out')
    add('--tta', action='store_true', help='test-time augmentation: tta_pipeline and tta_model of '
        'the config, else a horizontal flip')  # fmt: skip
    add('--batch-size', type=int, default=1, metavar='N', help='images to predict at once, where '
        'they have one size')  # fmt: skip
    add('--no-pictures', action='store_true', help='do not write vis/')
    add('--max-megapixels', type=float, default=MAX_MEGAPIXELS, metavar='N',
        help='images with more are not decoded (default: %(default)g)')  # fmt: skip
    add('--device', help=DEVICE)
    args = parser.parse_args(argv)
    if not 0 <= args.min_score <= 1:
        parser.error(f'--min-score must be 0 to 1, got {args.min_score}')
    check_positive(parser, args, 'batch_size', 'max_megapixels')
    return args


def app(argv: Optional[List[str]] = None) -> Namespace:
    """Serve a web page with predictions and attention maps of images.

    Without arguments it serves the models that come with the package.
    """
    parser = Parser('app', app.__doc__)
    add = parser.add_argument
    add(
        'models', nargs='*', metavar='CONFIG CHECKPOINT',
        help='config (file, or the name of one of this package) and checkpoint of each model',
    )  # fmt: skip
    add('--images', type=Path, metavar='DIR', help=f'examples to pick; default: {EXAMPLES}')
    add('--host', default='127.0.0.1', help='where to listen; 0.0.0.0: all of the network')
    add('--port', type=int, help='default: the first that is free from 7860')
    add('--device', help=DEVICE)
    args = parser.parse_args(argv)
    if len(args.models) % 2:
        parser.error(f'each CONFIG needs its CHECKPOINT; {args.models[-1]!r} has none')
    if args.port is not None and not 1 <= args.port <= 65535:
        parser.error(f'--port must be 1 to 65535, got {args.port}')
    return args


def export(argv: Optional[List[str]] = None) -> Namespace:
    """Export a trained model to files that run without this package: docs/export.md."""
    parser = Parser('export', export.__doc__, config=CONFIG)
    add = parser.add_argument
    add('checkpoint', help='checkpoint file')
    add('--format', nargs='+', default=['onnx'], metavar='NAME', help=', '.join(FORMATS))
    add('--shape', nargs=2, type=int, required=True, metavar=('H', 'W'), help='multiples of the '
        'stride; of dynamic files the size to capture at')  # fmt: skip
    add('--static', action='store_true', help='this size alone')
    add('--dynamic-batch', action='store_true', help='any number of images at once, not one')
    add('--sample', help='an image to check with; the first of the test set by default')
    add('--out', type=Path, help='files to write, without suffix; work_dirs/NAME/NAME by default')
    return parser.parse_args(argv)
