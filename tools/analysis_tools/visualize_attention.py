"""Draws where a SMCA detector looks in an image: the maps of its decoder and, where the encoder's
attention has them, the learnt weights of the rings around a position."""

import argparse
from pathlib import Path
from typing import Sequence, Tuple

import cv2
from mmdet.apis import inference_detector
from mmdet.registry import DATASETS
from mmengine.config import Config, DictAction
from mmengine.registry import MODELS
from torch import nn

from mmlinattn.analysis.attention_maps import draw_decoder_maps, draw_ring_weights, record
from mmlinattn.checkpoints import load_checkpoint
from mmlinattn.engine.config import load_config


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
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
    parser.add_argument('--cfg-options', nargs='+', action=DictAction, metavar='KEY=VALUE')
    parser.add_argument('--device', default='cpu')
    return parser


def build(args: argparse.Namespace) -> Tuple[nn.Module, Sequence[str]]:
    """The detector with the weights of the checkpoint, in eval mode, and names of its classes."""
    cfg = load_config(args.config, args.cfg_options)
    model = MODELS.build(cfg.model)
    meta = load_checkpoint(model, args.checkpoint)
    model.cfg = cfg
    classes = class_names(meta, cfg, model.bbox_head.num_classes)
    return model.to(args.device).eval(), classes


def class_names(meta: dict, cfg: Config, number: int) -> Sequence[str]:
    """Of the checkpoint's data set, else of the config's; numbers where neither has as many."""
    dataset = cfg.test_dataloader.dataset
    kind = DATASETS.get(dataset.type) if isinstance(dataset.type, str) else dataset.type
    for metainfo in (
        meta.get('dataset_meta'),
        dataset.get('metainfo'),
        getattr(kind, 'METAINFO', None),
    ):
        names = (metainfo or {}).get('classes', ())
        if len(names) == number:
            return names
    return [f'class {i}' for i in range(number)]


def cell_of(x: float, y: float, stride: int, hw_shape: Sequence[int]) -> Tuple[int, int]:
    """(row, column) of the cell whose middle is nearest; that of cell i is at i * stride."""
    row, column = (
        min(max(round(pixel / stride), 0), cells - 1) for pixel, cells in zip((y, x), hw_shape)
    )
    return row, column


def main() -> None:
    parser = make_parser()
    args = parser.parse_args()
    if args.queries < 1:
        parser.error(f'--queries must be positive, got {args.queries}')
    if not args.image.is_file():
        parser.error(f'image {str(args.image)!r} does not exist')
    model, classes = build(args)
    with record(model) as seen:
        sample = inference_detector(model, str(args.image))
    height, width = sample.img_shape[:2]
    if args.position:
        x, y = args.position
        if not (0 <= x < width and 0 <= y < height):
            parser.error(f'--position {x} {y} is not on the resized image, {width} x {height}')
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


if __name__ == '__main__':
    main()
