#!/usr/bin/env python
"""Train a small ViT-VQGAN with four attentions on crops of 64x64, and compare reconstructions.

Data: Shapes, which is generated, and CamVid, if it is in data/camvid. Runs the commands that a user
would run, two at a time, and goes on where it was. Writes results.md, results.json and a picture of
inputs beside reconstructions for each data set. The exit code is 1 if a PSNR is too low.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Dict, List

import torch
from demo import Stages, console, exit_with
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

ROOT = Path(__file__).resolve().parents[2]
CLASSIFIER = 'configs/quickstart/ravlt-nano_shapes.py'
DATA = {'shapes': 'data/shapes', 'camvid': 'data/camvid'}
# For maps of 16x16 tokens: as many anchors and landmarks as a map of 4x4 has.
ATTENTIONS = {
    'softmax': dict(type='SoftmaxAttention'),
    'Slinear': dict(type='SlinearAttention'),
    'Nystrom': dict(type='NystromAttention', num_landmarks=16),
    'RWGKA': dict(type='RWGKA', num_anchors=16),
}
LEAST_PSNR = 17.0  # dB; the mean colour of each image has less
PICTURES = 8
COLUMNS = {
    'psnr': 'PSNR, dB', 'ssim': 'SSIM', 'frechet_distance': 'Frechet distance, classifier',
    'code_usage': 'codes used, %', 'perplexity': 'perplexity',
}  # fmt: skip


def config_of(data: str) -> str:
    return f'configs/vqgan/vit-vqgan-nano_{data}.py'


def options_of(attention: str) -> Dict[str, object]:
    return {f'model.backbone.attn_cfg.{k}': v for k, v in ATTENTIONS[attention].items()}


def commands(work_dir: Path, data: List[str], iters: int) -> Dict[str, List[str]]:
    """Return the trainings that are not done, by name of stage."""
    found, train = {}, 'tools/train.py'
    if not (work_dir / 'classifier/last_checkpoint').is_file():
        found['classifier'] = [train, CLASSIFIER, '--work-dir', str(work_dir / 'classifier')]
    for name in data:
        for attention in ATTENTIONS:
            folder = work_dir / f'{name}_{attention}'
            if (folder / f'iter_{iters}.pth').is_file():
                continue
            options = [f'{key}={value}' for key, value in options_of(attention).items()]
            command = [train, config_of(name), '--work-dir', str(folder), '--resume']
            found[f'{name}, {attention}'] = [*command, '--cfg-options', *options]
    return found


def score(work_dir: Path, data: str, attention: str, iters: int) -> tuple:
    """Return the metrics of a trained model, and the first images with their reconstructions."""
    from mmengine.registry import DATASETS

    from mmlinattn.engine.config import load_config
    from mmlinattn.engine.model import load_model, quiet
    from mmlinattn.engine.runner.runner import PluginRunner

    folder = work_dir / f'{data}_{attention}'
    cfg = load_config(config_of(data), options_of(attention))
    checkpoint = str(folder / f'iter_{iters}.pth')
    classifier = (work_dir / 'classifier/last_checkpoint').read_text().strip()
    frechet = dict(type='FrechetDistance', classifier=CLASSIFIER, checkpoint=classifier)
    cfg.test_evaluator = [*cfg.test_evaluator, frechet]
    cfg.update(
        work_dir=str(folder / 'test'), load_from=checkpoint, log_level='ERROR',
        experiment_name=f'{data}-{attention}-test',
    )  # fmt: skip
    with quiet():
        found = PluginRunner.from_cfg(cfg).test()
    model, _ = load_model(cfg, checkpoint)
    dataset = DATASETS.build(cfg.test_dataloader.dataset)
    chosen = [dataset[i * len(dataset) // PICTURES] for i in range(PICTURES)]
    with torch.no_grad():
        samples = model.test_step(dict(inputs=[sample['inputs'] for sample in chosen]))
    images = [[s.get(name).permute(1, 2, 0).numpy() for s in samples]
              for name in ('gt_img', 'pred_img')]  # fmt: skip
    return {name.partition('/')[2]: value for name, value in found.items()}, images


def draw(path: Path, rows: Dict[str, list]) -> None:
    """Write a picture with one row of images per name."""
    import matplotlib

    matplotlib.use('Agg')
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        len(rows), PICTURES, figsize=(PICTURES, len(rows)), squeeze=False, dpi=96
    )
    for line, (name, images) in zip(axes, rows.items()):
        for ax, image in zip(line, images):
            ax.imshow(image, interpolation='nearest')
            ax.set(xticks=[], yticks=[])
        line[0].set_ylabel(name, fontsize=8)
    figure.subplots_adjust(
        left=0.04, right=0.998, bottom=0.003, top=0.997, wspace=0.02, hspace=0.02
    )
    figure.savefig(path)
    pyplot.close(figure)


def table(results: Dict[str, Dict[str, dict]]) -> str:
    """Return the scores as a table in Markdown."""
    lines = [f'| data | attention | {" | ".join(COLUMNS.values())} |']
    lines.append('| --- | --- |' + ' ---: |' * len(COLUMNS))
    for data, rows in results.items():
        for attention, found in rows.items():
            digits = dict(ssim=3)
            cells = [f'{found[name]:.{digits.get(name, 1)}f}' for name in COLUMNS]
            lines.append(f'| {data} | {attention} | {" | ".join(cells)} |')
    return '\n'.join(lines) + '\n'


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--work-dir', type=Path, default=Path('work_dirs/vqgan'))
    parser.add_argument('--data', nargs='+', choices=DATA, default=[*DATA])
    args = parser.parse_args()
    os.chdir(ROOT)
    args.work_dir.mkdir(parents=True, exist_ok=True)
    columns = (TextColumn('{task.description:<26}'), BarColumn(), TaskProgressColumn())
    results: Dict[str, Dict[str, dict]] = {}
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        stages = Stages(progress, args.work_dir)
        stages.run({'data set': ['-m', 'mmlinattn', 'shapes', DATA['shapes']]})
        data = [name for name in args.data if Path(DATA[name]).is_dir()]
        for name in set(args.data) - {*data}:
            progress.print(f'{name}: skipped, as {DATA[name]} is not there (docs/datasets.md)')
        import mmlinattn  # noqa: F401  registers everything
        from mmlinattn.engine.config import load_config

        iters = load_config(config_of('shapes')).train_cfg.max_iters
        todo = [*commands(args.work_dir, data, iters).items()]
        for start in range(0, len(todo), 2):
            stages.run(dict(todo[start : start + 2]))
        for name in data:
            rows = {}
            for attention in ATTENTIONS:
                found, (inputs, outputs) = score(args.work_dir, name, attention, iters)
                results.setdefault(name, {})[attention] = found
                rows.setdefault('input', inputs)
                rows[attention] = outputs
            draw(args.work_dir / f'{name}.png', rows)
    text = table(results)
    (args.work_dir / 'results.md').write_text(text)
    (args.work_dir / 'results.json').write_text(json.dumps(results, indent=1) + '\n')
    console.print(text, soft_wrap=True)
    console.print(f'pictures, logs and checkpoints: {args.work_dir.resolve()}', soft_wrap=True)
    low = [f'{data}, {attention}' for data, rows in results.items()
           for attention, found in rows.items() if found['psnr'] < LEAST_PSNR]  # fmt: skip
    if low:
        console.print(f'PSNR below {LEAST_PSNR}: {"; ".join(low)}', style='red')
    return int(bool(low))


if __name__ == '__main__':
    exit_with(main)
