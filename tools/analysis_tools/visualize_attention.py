"""Draws where a SMCA detector looks in an image: the maps of its decoder and, where the encoder's
attention has them, the learnt weights of the rings around a position."""

import argparse
from pathlib import Path

import cv2
from mmdet.apis import inference_detector
from mmengine.config import DictAction
from mmengine.registry import MODELS
from mmengine.runner import load_checkpoint

from mmlinattn.analysis.attention_maps import draw_decoder_maps, draw_ring_weights, record
from mmlinattn.checkpoints import check_fits
from mmlinattn.engine.launch import load_config


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('config', help='config file of a SMCA detector')
    parser.add_argument('checkpoint', type=Path, help='checkpoint file')
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
    args = parser.parse_args()
    if args.queries < 1:
        parser.error(f'--queries must be positive, got {args.queries}')
    if not args.image.is_file():
        parser.error(f'image {str(args.image)!r} does not exist')
    return args


def build(args: argparse.Namespace):
    """The detector with the weights of the checkpoint, in eval mode."""
    cfg = load_config(args.config, args.cfg_options)
    model = MODELS.build(cfg.model)
    check_fits(args.checkpoint, model)
    load_checkpoint(model, str(args.checkpoint), map_location='cpu')
    model.cfg = cfg
    return model.to(args.device).eval()


def main() -> None:
    args = parse_args()
    model = build(args)
    with record(model) as seen:
        sample = inference_detector(model, str(args.image))
    height, width = sample.img_shape[:2]
    image = cv2.resize(cv2.imread(str(args.image))[..., ::-1], (width, height))
    stride = model.decoder.stride
    classes = model.cfg.val_dataloader.dataset.get('metainfo', {}).get('classes')
    classes = classes or [f'class {i}' for i in range(model.bbox_head.num_classes)]
    path = args.out_dir / f'{args.image.stem}_decoder.png'
    print(draw_decoder_maps(path, image, seen, stride, classes, args.queries))
    if not seen.ring_weights:
        print('no attention of the encoder has spatial weights: no picture of rings')
        return
    x, y = (
        args.position
        or (
            seen.boxes[seen.best(1)[0], :2].cpu() * seen.boxes.new_tensor([width, height]).cpu()
        ).tolist()
    )
    position = int(y // stride), int(x // stride)
    path = args.out_dir / f'{args.image.stem}_rings.png'
    print(draw_ring_weights(path, image, seen, stride, position))


if __name__ == '__main__':
    main()
