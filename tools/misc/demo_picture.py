#!/usr/bin/env python
"""Draws predictions of the demo's two models beside ground truth."""

import argparse
from pathlib import Path
from typing import List

import cv2
import numpy as np
import torch
from mmengine.dataset import pseudo_collate
from mmengine.registry import DATASETS, MODELS, init_default_scope

from mmlinattn.analysis.pictures import comparison
from mmlinattn.checkpoints import load_checkpoint
from mmlinattn.datasets import shapes
from mmlinattn.engine.config import load_config


@torch.no_grad()
def predictions(config: str, checkpoint: str, indices: List[int]) -> list:
    """Data samples with ground truth and prediction of some test images."""
    cfg = load_config(config)
    init_default_scope(cfg.default_scope)
    model = MODELS.build(cfg.model).eval()
    load_checkpoint(model, checkpoint)
    dataset = DATASETS.build(cfg.test_dataloader.dataset)
    return [model.test_step(pseudo_collate([dataset[i]]))[0] for i in indices]


def semantic_panels(sample, image: np.ndarray) -> list:
    truth = sample.gt_sem_seg.data[0].numpy()
    return [(image, truth), (image, sample.pred_sem_seg.data[0].numpy())]


def instance_panels(sample, image: np.ndarray) -> list:
    truth, found = sample.gt_instances, sample.pred_instances
    found = found[found.scores > 0.5]
    # Palette and legend are those of the semantic classes: background comes first there.
    return [
        (image, dict(labels=truth.labels.numpy() + 1, boxes=_boxes(truth), masks=_masks(truth))),
        (
            image,
            dict(
                labels=found.labels.numpy() + 1,
                boxes=_boxes(found),
                masks=_masks(found),
                scores=found.scores.numpy(),
            ),
        ),
    ]


def _boxes(instances) -> np.ndarray:
    boxes = instances.bboxes
    return getattr(boxes, 'tensor', boxes).numpy()


def _masks(instances) -> np.ndarray:
    masks = instances.masks
    return np.asarray(masks.masks if hasattr(masks, 'masks') else masks).astype(bool)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('picture', type=Path, help='the file to write')
    for name in ('segmentor', 'detector'):
        parser.add_argument(name, metavar='CONFIG=CHECKPOINT', help=f'of the {name}')
    parser.add_argument('--indices', type=int, nargs='+', default=[0, 1, 2, 3], help='of images')
    args = parser.parse_args()
    semantic = predictions(*args.segmentor.split('='), args.indices)
    instances = predictions(*args.detector.split('='), args.indices)
    rows = []
    for sem, ins in zip(semantic, instances):
        image = cv2.imread(ins.img_path)[..., ::-1]
        rows.append([(image,), *semantic_panels(sem, image), *instance_panels(ins, image)])
    titles = ['image', 'semantic truth', 'prediction', 'instance truth', 'prediction (> 0.5)']
    comparison(args.picture, rows, titles, shapes.SEG_CLASSES, shapes.PALETTE)


if __name__ == '__main__':
    main()
