#!/usr/bin/env python
"""Draw images beside their reconstructions by the models of the study vqgan, seed 0."""

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure
from mmengine.dataset import pseudo_collate
from mmengine.registry import DATASETS, DefaultScope
from torch import Tensor

from mmlinattn.engine.config import load_config
from mmlinattn.engine.model import load_model

ATTENTIONS = ('softmax', 'Slinear', 'Nystrom', 'RWGKA')
COLUMNS = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('study', type=Path, help='work_dirs/study/vqgan')
    parser.add_argument('picture', type=Path, help='the file to write')
    parser.add_argument('--data', default='shapes', help='shapes or camvid')
    args = parser.parse_args()
    rows = {}
    for attention in ATTENTIONS:
        run = f'{args.data}_{attention}_seed0'
        found = [*args.study.glob(f'runs/{run}-*/configs/val.py')]
        if len(found) != 1:
            parser.error(f'{args.study} has {len(found)} folders runs/{run}-*, not 1')
        cfg = load_config(str(found[0]))
        model, _ = load_model(cfg, str(args.study / f'weights/{run}.pth'))
        with DefaultScope.overwrite_default_scope(cfg.default_scope), torch.no_grad():
            dataset = DATASETS.build(cfg.test_dataloader.dataset)
            indices = [i * len(dataset) // COLUMNS for i in range(COLUMNS)]
            samples = [model.test_step(pseudo_collate([dataset[i]]))[0] for i in indices]
        rows.setdefault('input', [sample.gt_img for sample in samples])
        rows[attention] = [sample.pred_img for sample in samples]
    draw(rows).savefig(args.picture, dpi=96)


def draw(rows: dict[str, list[Tensor]]) -> Figure:
    """Return a figure with one row of images (3, H, W) uint8 per name."""
    figure = Figure(figsize=(COLUMNS, len(rows)))
    for line, (name, images) in zip(figure.subplots(len(rows), COLUMNS), rows.items()):
        for axes, image in zip(line, images):
            axes.imshow(image.permute(1, 2, 0).numpy(), interpolation='nearest')
            axes.set(xticks=[], yticks=[])
        line[0].set_ylabel(name, fontsize=8)
    figure.subplots_adjust(
        left=0.04, right=0.998, bottom=0.003, top=0.997, wspace=0.02, hspace=0.02
    )
    return figure


if __name__ == '__main__':
    main()
