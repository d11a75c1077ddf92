#!/usr/bin/env python
"""Trains, tests and draws RAVLT on the embedded data set: segmentation and detection.

Runs the commands that a user would run, prints them, and ends with a table of scores beside
those of untrained weights, and a picture of predictions beside ground truth.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
from mmengine.dataset import pseudo_collate
from mmengine.registry import DATASETS, MODELS, init_default_scope
from rich.console import Console
from rich.table import Table

from mmlinattn.analysis.pictures import comparison
from mmlinattn.checkpoints import load_checkpoint, save_checkpoint
from mmlinattn.datasets import shapes
from mmlinattn.engine import seed_everything
from mmlinattn.engine.config import load_config

ROOT = Path(__file__).resolve().parents[2]
SEGMENTOR = 'configs/quickstart/semantic-fpn_ravlt-nano_shapes.py'
DETECTOR = 'configs/quickstart/mask-rcnn_ravlt-nano_shapes.py'
SCORES = {
    'mIoU': (SEGMENTOR, 'mIoU', 0.01),
    'box mAP': (DETECTOR, 'coco/bbox_mAP', 1),
    'box AP50': (DETECTOR, 'coco/bbox_mAP_50', 1),
    'mask mAP': (DETECTOR, 'coco/segm_mAP', 1),
    'mask AP50': (DETECTOR, 'coco/segm_mAP_50', 1),
}
console = Console(highlight=False)


def run(*command: str) -> None:
    """Runs a command of this repository, showing it and its output."""
    console.print(f'\n$ python {" ".join(command)}', style='bold cyan')
    subprocess.run([sys.executable, *command], check=True, cwd=ROOT)


def test(config: str, checkpoint: Path, work_dir: Path) -> dict:
    """Tests a checkpoint with ``tools/test.py``; returns its metrics."""
    run('tools/test.py', config, str(checkpoint), '--work-dir', str(work_dir))
    newest = max(work_dir.glob('*/*.json'), key=lambda file: file.stat().st_mtime)
    return json.loads(newest.read_text())


def build(config: str, checkpoint: str = '') -> tuple:
    """The config and its model, in eval mode, with initial weights or those of a file."""
    cfg = load_config(str(ROOT / config))
    seed_everything(0)
    model = MODELS.build(cfg.model)
    if checkpoint:
        load_checkpoint(model, checkpoint)
    else:
        model.init_weights()
    return cfg, model.eval()


@torch.no_grad()
def predictions(config: str, checkpoint: Path, indices: list) -> list:
    """Data samples with ground truth and prediction of some test images."""
    cfg, model = build(config, str(checkpoint))
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


def draw(path: Path, checkpoints: dict, indices: list) -> Path:
    import cv2

    init_default_scope('mmseg')
    semantic = predictions(SEGMENTOR, checkpoints[SEGMENTOR], indices)
    instances = predictions(DETECTOR, checkpoints[DETECTOR], indices)
    rows = []
    for sem, ins in zip(semantic, instances):
        image = cv2.imread(ins.img_path)[..., ::-1]
        rows.append([(image,), *semantic_panels(sem, image), *instance_panels(ins, image)])
    titles = ['image', 'semantic truth', 'prediction', 'instance truth', 'prediction (> 0.5)']
    return comparison(path, rows, titles, shapes.SEG_CLASSES, shapes.PALETTE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--work-dir', type=Path, default=Path('work_dirs/demo'))
    args = parser.parse_args()
    os.chdir(ROOT)
    start = time.time()
    run('-m', 'mmlinattn.datasets.shapes', 'data/shapes')
    checkpoints, trained, untrained = {}, {}, {}
    for config in (SEGMENTOR, DETECTOR):
        work_dir = args.work_dir / Path(config).stem
        initial = work_dir / 'untrained.pth'
        save_checkpoint(initial, build(config)[1].state_dict(), {})
        untrained[config] = test(config, initial, work_dir / 'test_untrained')
        run('tools/train.py', config, '--work-dir', str(work_dir))
        checkpoints[config] = Path((work_dir / 'last_checkpoint').read_text().strip())
        trained[config] = test(config, checkpoints[config], work_dir / 'test')
    picture = draw(args.work_dir / 'predictions.png', checkpoints, indices=[0, 1, 2, 3])

    table = Table(title='Shapes, validation split')
    for column in ('score', 'trained', 'untrained'):
        table.add_column(column, justify='right')
    for name, (config, key, unit) in SCORES.items():
        values = (unit * results[config][key] for results in (trained, untrained))
        table.add_row(name, *(f'{value:.3f}' for value in values))
    console.print()
    console.print(table)
    console.print(f'{time.time() - start:.0f} s in all')
    console.print(f'picture: {picture.resolve()}', soft_wrap=True)


if __name__ == '__main__':
    main()
