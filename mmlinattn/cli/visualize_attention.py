"""Draw the attention maps of an SMCA detector."""

import argparse
import math

import cv2
from mmdet.apis import inference_detector

from ..apis.sources import read_image
from ..engine.config import load_config
from ..engine.model import check_device, class_names, load_model
from ..utils import check_writable
from ..visualization.attention_maps import draw_decoder_maps, record


def main(args: argparse.Namespace) -> int:
    path = args.out_dir / f'{args.image.stem}_decoder.png'
    check_writable(path)
    cfg = load_config(args.config, args.cfg_options)
    model, meta = load_model(cfg, args.checkpoint, check_device(args.device))
    bgr = read_image(args.image, max_megapixels=math.inf)
    with record(model) as seen:
        sample = inference_detector(model, str(args.image))
    classes = class_names(cfg, meta, model.bbox_head.num_classes)
    height, width = sample.img_shape[:2]
    image = cv2.resize(bgr[..., ::-1], (width, height))
    print(draw_decoder_maps(path, image, seen, model.decoder.stride, classes, args.queries))
    return 0
