#!/usr/bin/env python
"""Find nuclei in real images with the shipped weights, then fine-tune them on 28 images.

Runs the commands that a user would run, with one progress bar each, and prints the scores on 14
held-out images beside their minimum. The output of the commands is written to log files. The exit
status is not 0 if a score is too low.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Callable, Dict, List

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

ROOT = Path(__file__).resolve().parents[2]
SEGMENTOR = 'configs/nuclei/semantic-fpn_ravlt-nano-linear_nuclei.py'
DETECTOR = 'configs/nuclei/mask-rcnn_ravlt-nano-linear_nuclei.py'
NAMES = {'Mask R-CNN': DETECTOR, 'Semantic FPN': SEGMENTOR}
# A step of the segmentor, on doubled images, takes three times as long as one of the detector.
ITERATIONS, RATE = {DETECTOR: 120, SEGMENTOR: 60}, 2e-4
# Name, config, MMEngine's name, unit, minimum of the shipped weights and after the fine-tuning:
# below the usual score, because machines differ.
SCORES = [
    ('mask AP50', DETECTOR, 'coco/segm_mAP_50', 1, 0.70, 0.70),
    ('box AP50', DETECTOR, 'coco/bbox_mAP_50', 1, 0.70, 0.70),
    ('IoU of interiors', SEGMENTOR, 'class/IoU_interior', 0.01, 0.76, 0.74),
]
# Remaining time in MMEngine's training log, by iterations or epochs.
ETA = re.compile(r'\(train\) .* eta: (\d+):(\d\d):(\d\d) ')
TAIL = 20
console = Console(highlight=False, markup=False, emoji=False)


class StageError(RuntimeError):
    """Failure of a command; the message shows the end of its output."""


class Stages:
    """Runner of repository commands, each with a progress bar and a log file."""

    def __init__(self, progress: Progress, logs: Path) -> None:
        self.progress, self.logs = progress, logs
        self.running = []

    def run(self, commands: Dict[str, List[str]]) -> None:
        """Run commands in parallel, given as arguments of Python by name of stage.

        If one fails, end the others and raise StageError.
        """
        # The commands share the cores. Small models gain little from a second thread, and
        # processes with more threads than cores slow each other down.
        threads = max(1, (os.cpu_count() or 1) // len(commands))
        env = dict(os.environ, PYTHONUNBUFFERED='1')
        env.setdefault('OMP_NUM_THREADS', str(threads))
        with ThreadPoolExecutor(len(commands)) as pool:
            stages = [pool.submit(self._run, *stage, env) for stage in commands.items()]
            try:
                for stage in as_completed(stages):
                    stage.result()
            finally:
                for process in self.running:
                    process.terminate()

    def _run(self, name: str, command: List[str], env: dict) -> None:
        task, start = self.progress.add_task(name, total=None), time.time()
        log = self.logs / f'{name.lower().replace(" ", "-")}.log'
        with log.open('w') as file, subprocess.Popen(
            [sys.executable, *command], cwd=ROOT, env=env, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        ) as process:  # fmt: skip
            self.running.append(process)
            for line in process.stdout:
                file.write(line)
                found = ETA.search(line)
                if found:
                    hours, minutes, seconds = map(int, found.groups())
                    done = time.time() - start
                    left = 3600 * hours + 60 * minutes + seconds
                    self.progress.update(task, completed=done, total=done + left)
                elif '(val)' in line:
                    self.progress.update(task, description=f'{name}, validation')
        self.running.remove(process)
        if process.returncode:
            end = '\n'.join(log.read_text().splitlines()[-TAIL:])
            line = ' '.join(command)
            raise StageError(f'{end}\n$ python {line}\nfailed; all of its output: {log}')
        self.progress.update(task, description=name, total=1, completed=1)


def scores(work_dir: Path) -> dict:
    """Return the metrics of the newest test or validation in a work directory."""
    files = [*work_dir.glob('*/vis_data/scalars.json'), *work_dir.glob('*/*.json')]
    newest = max(files, key=lambda file: file.stat().st_mtime)
    return json.loads(newest.read_text().splitlines()[-1])


def train(config: str, work_dir: Path, weights: str) -> List[str]:
    """Return the command of a short training from these weights."""
    lengths = ['train_cfg.max_iters', 'train_cfg.val_interval']
    lengths += ['param_scheduler.0.total_steps', 'default_hooks.checkpoint.interval']
    options = dict.fromkeys(lengths, ITERATIONS[config])
    options |= {'optim_wrapper.optimizer.lr': RATE, 'param_scheduler.0.eta_max': RATE}
    command = ['tools/train.py', config, '--amp', '--work-dir', str(work_dir), '--cfg-options']
    return [*command, f'load_from={weights}', *(f'{key}={of}' for key, of in options.items())]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--work-dir', type=Path, default=Path('work_dirs/demo'))
    args = parser.parse_args()
    os.chdir(ROOT)
    args.work_dir.mkdir(parents=True, exist_ok=True)
    start = time.time()
    shipped = {config: f'mmlinattn://{Path(config).stem}' for config in (DETECTOR, SEGMENTOR)}
    folders = {config: args.work_dir / Path(config).stem for config in shipped}
    columns = (TextColumn('{task.description:<26}'), BarColumn(), TaskProgressColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        stages = Stages(progress, args.work_dir)
        draw(stages, 'shipped weights', args.work_dir / 'nuclei.png', shipped)
        stages.run(
            {
                f'{name}, test': [
                    'tools/test.py',
                    config,
                    shipped[config],
                    '--work-dir',
                    str(folders[config] / 'shipped'),
                ]
                for name, config in NAMES.items()
            }
        )
        stages.run(
            {
                name: train(config, folders[config], shipped[config])
                for name, config in NAMES.items()
            }
        )
        models = {
            config: (folder / 'last_checkpoint').read_text().strip()
            for config, folder in folders.items()
        }
        draw(stages, 'picture', args.work_dir / 'trained.png', models)

    table = Table(title='14 held-out images')
    for column in ('score', 'shipped weights', 'at least', 'fine-tuned', 'at least'):
        table.add_column(column, justify='right')
    missed = []
    for name, config, key, unit, *least in SCORES:
        reached = [
            unit * scores(folder).get(key, 0.0)
            for folder in (folders[config] / 'shipped', folders[config])
        ]
        pairs = [f'{value:.2f}' for pair in zip(reached, least) for value in pair]
        table.add_row(name, *pairs)
        if any(value < minimum for value, minimum in zip(reached, least)):
            missed.append(name)
    console.print(table)
    console.print(f'{time.time() - start:.0f} s in all; logs and checkpoints: {args.work_dir}')
    if missed:
        console.print(f'Too low: {", ".join(missed)}', style='red')
    return len(missed)


def draw(stages: Stages, name: str, picture: Path, models: Dict[str, str]) -> None:
    """Draw what the detector and the segmentor find, and say where the picture is."""
    pairs = [f'{config}={checkpoint}' for config, checkpoint in models.items()]
    stages.run({name: ['tools/misc/demo_picture.py', str(picture), *pairs]})
    console.print(f'picture: {picture.resolve()}', soft_wrap=True)


def exit_with(main: Callable[[], int]) -> None:
    """Exit with the result of ``main``; print a failed stage or a file error without traceback."""
    try:
        sys.exit(main())
    except StageError as error:
        console.print(error)
        sys.exit(1)
    except OSError as error:
        console.print(f'error: {error}', markup=False, soft_wrap=True)
        sys.exit(2)


if __name__ == '__main__':
    exit_with(main)
