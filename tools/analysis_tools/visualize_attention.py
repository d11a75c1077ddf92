"""Draw the attention maps of a SMCA detector: the maps of its decoder and, if the encoder has
ripple attention, the learnt weights of the rings around a position."""

import argparse
from pathlib import Path

import cv2
from mmdet.apis import inference_detector

from mmlinattn.engine.config import load_config
from mmlinattn.engine.model import class_names, load_model
from mmlinattn.utils.command_line import Parser, errors_in_one_line
from mmlinattn.visualization.attention_maps import (
    cell_of,
    draw_decoder_maps,
    draw_ring_weights,
    record,
)


def make_parser() -> Parser:
    parser = Parser(cfg_options=True, description=__doc__)
    parser.add_argument('config', help='config file of a SMCA detector')
    parser.add_argument('checkpoint', help='checkpoint: a file or an address')
    parser.add_argument('image', type=Path, help='image file')
    parser.add_argument('--out-dir', type=Path, default=Path('work_dirs/attention'))
    parser.add_argument('--queries', type=int, default=4, help='how many, best first')
    parser.add_argument(
        '--position',
        nargs=2,
        type=int,
        metavar=('X', 'Y'),
        help='pixel of the resized image in the middle of the rings; default: the best box',
    )
    parser.add_argument('--device', default='cpu')
    return parser


def run(args: argparse.Namespace) -> None:
    cfg = load_config(args.config, args.cfg_options)
    model, meta = load_model(cfg, args.checkpoint, args.device)
    classes = class_names(cfg, meta, model.bbox_head.num_classes)
    with record(model) as seen:
        sample = inference_detector(model, str(args.image))
    height, width = sample.img_shape[:2]
    if args.position:
        x, y = args.position
        if not (0 <= x < width and 0 <= y < height):
            raise ValueError(f'--position {x} {y} is not on the resized image, {width} x {height}')
    else:
        cx, cy = seen.boxes[seen.best(1)[0], :2].tolist()
        x, y = cx * width, cy * height
    image = cv2.resize(cv2.imread(str(args.image))[..., ::-1], (width, height))
    stride = model.decoder.stride
    path = args.out_dir / f'{args.image.stem}_decoder.png'
    print(draw_decoder_maps(path, image, seen, stride, classes, args.queries))
    if not seen.ring_weights:
        print('no attention of the encoder has spatial weights: no picture of rings')
        return
    position = cell_of(x, y, stride, seen.hw_shape)
    path = args.out_dir / f'{args.image.stem}_rings.png'
    print(draw_ring_weights(path, image, seen, stride, position))


def main() -> None:
    parser = make_parser()
    args = parser.parse_args()
    if args.queries < 1:
        parser.error(f'--queries must be positive, got {args.queries}')
    if not args.image.is_file():
        parser.error(f'image {str(args.image)!r} does not exist')
    with errors_in_one_line(args.debug):
        run(args)


if __name__ == '__main__':
    main()
