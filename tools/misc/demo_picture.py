#!/usr/bin/env python
"""Draw predictions of the demo's two models beside ground truth."""

import argparse
from pathlib import Path

import cv2
import numpy as np
import torch
from mmengine.dataset import pseudo_collate
from mmengine.registry import DATASETS

from mmlinattn.datasets import shapes
from mmlinattn.engine.config import load_config
from mmlinattn.engine.model import load_model
from mmlinattn.visualization.predictions import draw_prediction


@torch.no_grad()
def predict(config: str, checkpoint: str, indices: list[int]) -> list:
    """Return data samples of test images with ground truth and prediction."""
    cfg = load_config(config)
    model, _ = load_model(cfg, checkpoint)
    dataset = DATASETS.build(cfg.test_dataloader.dataset)
    return [model.test_step(pseudo_collate([dataset[i]]))[0] for i in indices]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('picture', type=Path, help='the file to write')
    for name in ('segmentor', 'detector'):
        parser.add_argument(name, metavar='CONFIG=CHECKPOINT', help=f'of the {name}')
    parser.add_argument('--indices', type=int, nargs='+', default=[0, 1, 2, 3], help='of images')
    args = parser.parse_args()
    semantic, instances = (
        predict(config, checkpoint, args.indices)
        for config, checkpoint in (args.segmentor.split('='), args.detector.split('='))
    )
    rows = []
    for sem, ins in zip(semantic, instances):
        image = cv2.imread(ins.img_path)[..., ::-1]
        classes, palette = shapes.SEG_CLASSES, shapes.PALETTE
        drawn = [
            draw_prediction(image, sem, classes, palette, with_truth=True),
            draw_prediction(image, ins, classes[1:], palette[1:], 0.5, with_truth=True),
        ]
        rows.append(np.hstack([image, *drawn]))
    args.picture.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(args.picture), np.vstack(rows)[..., ::-1])


if __name__ == '__main__':
    main()
