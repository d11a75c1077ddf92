"""Export a trained model to files that run without this package: docs/export.md."""

import argparse
from pathlib import Path
from typing import List, Optional

from ..deployment import FORMATS, Settings, export, sample_image
from ..engine.config import load_config
from ..utils.command_line import Parser, errors_in_one_line


def parse_args(argv: Optional[List[str]] = None) -> argparse.Namespace:
    parser = Parser(cfg_options=True, description=__doc__)
    add = parser.add_argument
    add('config', help='config file, or the name of one of this package')
    add('checkpoint', help='checkpoint file')
    add('--format', nargs='+', default=['onnx'], metavar='NAME', help=', '.join(FORMATS))
    add('--shape', nargs=2, type=int, required=True, metavar=('H', 'W'), help='multiples of the '
        'stride; of dynamic files the size to capture at')  # fmt: skip
    add('--static', action='store_true', help='this size alone')
    add('--dynamic-batch', action='store_true', help='any number of images at once, not one')
    add('--fp16', action='store_true', help='half precision, checked on --sample')
    add('--raw', action='store_true', help='what the heads give: logits in place of labels, ...')
    add('--sample', help='an image to check with; the first of the test set by default')
    add('--out', type=Path, help='files to write, without suffix; work_dirs/NAME/NAME by default')
    return parser.parse_args(argv)


def main(argv: Optional[List[str]] = None) -> int:
    args = parse_args(argv)
    name = Path(args.config).stem
    with errors_in_one_line(args.debug):
        cfg = load_config(args.config, args.cfg_options)
        image, origin = sample_image(cfg, args.sample)
        settings = Settings(tuple(args.shape), args.static, args.dynamic_batch, args.fp16, args.raw)
        print(f'compared on {origin}', flush=True)
        out = args.out or Path('work_dirs') / name / name
        for written in export(cfg, args.checkpoint, args.format, settings, out, image):
            print(written, flush=True)
    return 0
