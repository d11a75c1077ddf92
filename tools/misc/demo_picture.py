#!/usr/bin/env python
"""Draw nuclei: image, ground truth, and what a detector and a segmentor predict.

Of large images the middle is shown; the models see all of them.
"""

import argparse
from pathlib import Path

import cv2
import numpy as np
import torch
from mmengine.dataset import pseudo_collate
from mmengine.registry import DATASETS

from mmlinattn.engine.config import load_config
from mmlinattn.engine.model import load_model

SHOWN = (300, 400)  # largest (height, width) of an image that is shown
WIDTH, GAP = 400, 6  # of a panel and of the white between panels, in pixels
# Of the classes background (drawn as it is), interior and border.
COLORS = np.array([[0, 0, 0], [40, 170, 250], [30, 30, 230]])


@torch.no_grad()
def predict(config: str, checkpoint: str, indices: list[int]) -> list:
    """Return data samples of test images with ground truth and prediction."""
    cfg = load_config(config)
    model, _ = load_model(cfg, checkpoint)
    dataset = DATASETS.build(cfg.test_dataloader.dataset)
    return [model.test_step(pseudo_collate([dataset[i]]))[0] for i in indices]


def outlined(image: np.ndarray, masks: np.ndarray) -> np.ndarray:
    """Return the image with the outline of each mask, (N, H, W), in a colour of its own."""
    drawn = image.copy()
    for i, mask in enumerate(masks.astype(np.uint8)):
        mask = cv2.resize(mask, image.shape[1::-1], interpolation=cv2.INTER_NEAREST)
        outlines, _ = cv2.findContours(mask, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
        hue = np.uint8([[[i * 67 % 180, 200, 255]]])
        color = cv2.cvtColor(hue, cv2.COLOR_HSV2BGR)[0, 0].tolist()
        cv2.drawContours(drawn, outlines, -1, color, 2)
    return drawn


def coloured(image: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return the image under the colours of a class map, (H, W)."""
    classes = cv2.resize(classes, image.shape[1::-1], interpolation=cv2.INTER_NEAREST)
    mixed = np.where((classes > 0)[..., None], image // 2 + COLORS[classes] // 2, image)
    return mixed.astype(np.uint8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('picture', type=Path, help='the file to write')
    for name in ('detector', 'segmentor'):
        parser.add_argument(name, metavar='CONFIG=CHECKPOINT', help=f'of the {name}')
    parser.add_argument('--indices', type=int, nargs='+', default=[8, 0, 5, 12], help='of images')
    args = parser.parse_args()
    instances, semantic = (
        predict(*model.split('='), args.indices) for model in (args.detector, args.segmentor)
    )
    rows = []
    for ins, sem in zip(instances, semantic):
        image = cv2.imread(ins.img_path)
        middle = tuple(
            slice(max(0, (side - most) // 2), (side + most) // 2)
            for side, most in zip(image.shape, SHOWN)
        )
        image = image[middle]
        height = WIDTH * image.shape[0] // image.shape[1]
        image = cv2.resize(image, (WIDTH, height), interpolation=cv2.INTER_AREA)
        found = ins.pred_instances[ins.pred_instances.scores >= 0.3]  # as mmlinattn predict
        panels = [
            image,
            outlined(image, ins.gt_instances.masks.masks[(slice(None), *middle)]),
            outlined(image, found.masks.numpy()[(slice(None), *middle)]),
            coloured(image, sem.pred_sem_seg.data[0].numpy().astype(np.uint8)[middle]),
        ]
        white = np.full((height, GAP, 3), 255, np.uint8)
        rows.append(np.hstack([part for panel in panels for part in (panel, white)][:-1]))
        rows.append(np.full((GAP, rows[0].shape[1], 3), 255, np.uint8))
    heads = np.full((40, rows[0].shape[1], 3), 255, np.uint8)
    for i, head in enumerate(('image', 'annotated', 'Mask R-CNN', 'Semantic FPN: nucleus, border')):
        place = (i * (WIDTH + GAP) + 4, 28)
        cv2.putText(heads, head, place, cv2.FONT_HERSHEY_DUPLEX, 0.7, (0, 0, 0), 1, cv2.LINE_AA)
    args.picture.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(args.picture), np.vstack([heads, *rows[:-1]]))


if __name__ == '__main__':
    main()
