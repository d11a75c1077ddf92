#!/usr/bin/env python
"""Train TimeSformer with each scheme on Moving Shapes, and print a table of accuracies.

It writes the videos (PyAV, the extra "video") and draws a picture of the classes. It trains the
configs with one thread each, as many at once as there are cores. The exit status is 1 unless space
attention stays near chance and all others are far above it.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Tuple

import cv2
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from mmlinattn.projects.video.moving_shapes import CLASSES, draw_clip, generate_videos  # noqa: E402

MODELS = (
    'space', 'joint', 'divided', 'sparse', 'axial', 'joint-rala', 'joint-rwgka', 'joint-ripple',
)  # fmt: skip
CHANCE, LEARNT = 40, 60  # percent: space attention stays below, the others above


def draw_classes(path: Path, side: int = 96) -> None:
    """Draw every second frame of a clip of each class, a row a class."""
    rows = []
    for label, name in enumerate(CLASSES):
        clip = draw_clip(np.random.default_rng(7), label, side, 16)[::2]
        row = cv2.copyMakeBorder(np.concatenate(list(clip), 1), 18, 4, 0, 0, cv2.BORDER_CONSTANT)
        font = (cv2.FONT_HERSHEY_SIMPLEX, 0.45, (255, 255, 255), 1, cv2.LINE_AA)
        rows.append(cv2.putText(row, name, (4, 13), *font))
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = np.ascontiguousarray(np.concatenate(rows)[..., ::-1])
    path.write_bytes(cv2.imencode('.jpg', picture)[1].tobytes())


def train(model: str, data: Path, work: Path) -> Tuple[float, float]:
    """Train a config.

    Returns:
        accuracy on the validation videos in percent, and processor seconds.
    """
    folder = work / model
    loaders = [f'{split}_dataloader.dataset.data_root={data}' for split in ('train', 'val', 'test')]
    config = ROOT / f'configs/timesformer/timesformer-nano-{model}_moving-shapes.py'
    command = [sys.executable, ROOT / 'tools/train.py', config, '--work-dir', folder]
    log = folder.with_suffix('.log')
    with log.open('w') as file:
        process = subprocess.Popen(
            [*map(str, command), '--cfg-options', *loaders],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=dict(os.environ, OMP_NUM_THREADS='1', PYTHONPATH=str(ROOT)),
        )
        _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f'{model}: training failed, see {log}')
    return accuracy(folder), used.ru_utime + used.ru_stime


def accuracy(folder: Path) -> float:
    """Return the last accuracy that a training has logged, in percent."""
    newest = max(folder.glob('*/vis_data/scalars.json'), key=lambda path: path.stat().st_mtime)
    lines = [json.loads(line) for line in newest.read_text().splitlines()]
    return [line['accuracy/top1'] for line in lines if 'accuracy/top1' in line][-1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition('\n\n')[0])
    parser.add_argument('--data', type=Path, default=ROOT / 'data/moving_shapes', help='videos')
    parser.add_argument('--work-dir', type=Path, default=ROOT / 'work_dirs/moving_shapes')
    parser.add_argument('--models', nargs='+', choices=MODELS, default=MODELS, metavar='MODEL')
    args = parser.parse_args()
    args.data.parent.mkdir(parents=True, exist_ok=True)
    args.work_dir.mkdir(parents=True, exist_ok=True)
    generate_videos(args.data)
    draw_classes(args.work_dir / 'classes.jpg')
    print('| model | top-1 | processor seconds |\n| --- | ---: | ---: |', flush=True)
    wrong, start = [], time.monotonic()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        runs = pool.map(partial(train, data=args.data, work=args.work_dir), args.models)
        for model, (top1, seconds) in zip(args.models, runs):
            print(f'| {model} | {top1:.1f} | {seconds:.0f} |', flush=True)
            if (top1 > CHANCE) if model == 'space' else (top1 < LEARNT):
                wrong.append(model)
    print(f'{(time.monotonic() - start) / 60:.1f} minutes on {os.cpu_count()} cores')
    if wrong:
        print(f'unexpected accuracy: {", ".join(wrong)}', file=sys.stderr)
    return int(bool(wrong))


if __name__ == '__main__':
    sys.exit(main())
