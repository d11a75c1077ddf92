#!/usr/bin/env python
"""Draw predictions of the demo's two models beside ground truth."""

import argparse
from pathlib import Path

import cv2

from mmlinattn.datasets import shapes
from mmlinattn.engine.config import load_config
from mmlinattn.visualization.predictions import (
    comparison,
    instance_panels,
    predict,
    semantic_panels,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('picture', type=Path, help='the file to write')
    for name in ('segmentor', 'detector'):
        parser.add_argument(name, metavar='CONFIG=CHECKPOINT', help=f'of the {name}')
    parser.add_argument('--indices', type=int, nargs='+', default=[0, 1, 2, 3], help='of images')
    args = parser.parse_args()
    semantic, instances = (
        predict(load_config(config), checkpoint, args.indices)
        for config, checkpoint in (args.segmentor.split('='), args.detector.split('='))
    )
    rows = []
    for sem, ins in zip(semantic, instances):
        image = cv2.imread(ins.img_path)[..., ::-1]
        # Palette and legend are those of the semantic classes, where background comes first.
        objects = instance_panels(ins, image, first_label=1)
        rows.append([(image,), *semantic_panels(sem, image), *objects])
    titles = ['image', 'semantic truth', 'prediction', 'instance truth', 'prediction (> 0.5)']
    comparison(args.picture, rows, titles, shapes.SEG_CLASSES, shapes.PALETTE)


if __name__ == '__main__':
    main()
