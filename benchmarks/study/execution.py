"""Runs of a study by the commands ``train``, ``linearize`` and ``test``, and their records."""

import json
import math
import os
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Dict, Iterator, List, Sequence, Set, Tuple

import torch
from mmengine.config import Config
from mmengine.device import get_device

from benchmarks.machine import commit, machine, versions
from mmlinattn.checkpoints import load_state_dict, save_checkpoint
from mmlinattn.utils import write_json, write_text

from .grid import ROOT, Grid, GridError, Run

RECORD = 'record.json'
_running: Set[subprocess.Popen] = set()


def facts() -> dict:
    """Return machine, versions and commit, which are needed to judge and to repeat the result."""
    where = machine(torch.device(get_device()))
    return dict(machine=where, versions=versions(), commit=commit())


def prepare(grid: Grid) -> None:
    """Make the missing folders of data that the options of the runs name.

    Raises:
        GridError: a folder cannot be made.
    """
    missing = {folder: of for folder, of in grid.prepare.items() if not Path(folder).exists()}
    options = str([run.options for run in map(grid.run, grid.points())])
    for folder, words in missing.items():
        if folder in options:
            command = [sys.executable, *shlex.split(words)]
            done = subprocess.run(command, capture_output=True, text=True, env=_environment())
            if done.returncode:
                why = (done.stderr.strip().splitlines() or [''])[-1]
                raise GridError(f'{folder} cannot be made: {why}; --only leaves its data out')


def run_folder(folder: Path, run: Run) -> Path:
    """Return the folder of a run: other settings have another one."""
    return folder / 'runs' / f'{run.name}-{run.settings[:8]}'


def weights_file(folder: Path, run: Run) -> Path:
    """Return the file of the trained weights."""
    return folder / 'weights' / f'{run.name}.pth'


def records(folder: Path, runs: Sequence[Run]) -> Dict[str, dict]:
    """Return the record of each run that has been executed with these settings, by its name."""
    files = {run.name: run_folder(folder, run) / RECORD for run in runs}
    return {name: json.loads(file.read_text()) for name, file in files.items() if file.is_file()}


def execute_all(runs: Sequence[Run], folder: Path, jobs: int) -> Iterator[Tuple[Run, dict]]:
    """Execute runs in parallel and yield each with its record as it finishes.

    The loop may be left at any time: the commands are then told to end, and the next start resumes
    their trainings from the last checkpoint.
    """
    pool = ThreadPoolExecutor(jobs)
    futures = {pool.submit(execute, run, folder): run for run in runs}
    try:
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in [*_running]:
            process.terminate()
        pool.shutdown()


def execute(run: Run, folder: Path) -> dict:
    """Train and test a run, and return its record; that of a failed run has ``error``."""
    here, start = run_folder(folder, run), time.monotonic()
    here.mkdir(parents=True, exist_ok=True)
    record = dict(run=run.name, values=run.values, seed=run.seed, rate=run.rate)
    record.update(settings=run.settings, **facts())
    try:
        checkpoint = _linearize(run, folder, here) if run.teacher else _train(run, here)
        metrics = {split: _test(run, split, checkpoint, here) for split in run.splits}
        _check_metrics(run, metrics)
        record['metrics'] = metrics
        if not run.search:
            _save_weights(run, checkpoint, folder)
        for path in here.rglob('*.pth'):
            path.unlink()
    except Exception as error:  # the other runs go on; the page lists failures
        record['error'] = f'{type(error).__name__}: {error}'
    record['wall'] = round(time.monotonic() - start, 1)
    write_json(here / RECORD, record)
    return record


def _check_metrics(run: Run, metrics: Dict[str, dict]) -> None:
    for split, key in run.required:
        if key not in metrics[split]:
            found = ', '.join(metrics[split]) or 'none (a detector: it predicts no box)'
            raise ValueError(f'split {split} has no metric {key}; it has {found}')
        if not math.isfinite(metrics[split][key]):
            raise ValueError(f'split {split}: metric {key} is {metrics[split][key]}, not finite')


def _train(run: Run, here: Path) -> Path:
    """Run the command ``train``; return its last checkpoint."""
    config = _write(run.load(), here / 'configs/train.py')
    _command(here, 'train', config, '--work-dir', here, '--resume')
    # The file has the path of the time; the folder may have moved.
    return here / Path((here / 'last_checkpoint').read_text()).name


def _linearize(run: Run, folder: Path, here: Path) -> Path:
    """Run the command ``linearize``; return its checkpoint."""
    assert run.teacher is not None and run.linearize is not None
    weights, out = weights_file(folder, run.teacher), here / 'linear'
    teacher = _write(run.teacher.load(), here / 'configs/teacher.py')
    words = [*linearize_options(run.linearize), '--seed', run.seed, '--no-score', '--resume']
    _command(here, 'linearize', teacher, weights, '--out', out, *words)
    return out / 'model.pth'


def linearize_options(options: dict) -> List[str]:
    """Return arguments of the command ``linearize``."""
    found: List[str] = []
    for key, value in options.items():
        found.append(f'--{key.replace("_", "-")}')
        if key == 'keep_softmax':
            found.append(','.join(map(str, value)))
        elif key == 'attn_options':
            found += [f'{name}={option}' for name, option in value.items()]
        else:
            found.append(str(value))
    return found


def _test(run: Run, split: str, checkpoint: Path, here: Path) -> Dict[str, float]:
    """Run the command ``test`` on a split and return its metrics."""
    work_dir = here / split
    config = _write(run.load(split), here / f'configs/{split}.py')
    _command(here, 'test', config, checkpoint, '--work-dir', work_dir)
    newest = max(work_dir.glob('*/*.json'), key=lambda path: path.stat().st_mtime_ns)
    found = json.loads(newest.read_text().splitlines()[-1])
    return {key: value for key, value in found.items() if key not in ('time', 'data_time')}


def _save_weights(run: Run, checkpoint: Path, folder: Path) -> None:
    """Save the weights alone; ``mmlinattn analyze key-weights`` reads ``attn_cfg``."""
    state, meta = load_state_dict(str(checkpoint))
    kept = {key: meta[key] for key in ('dataset_meta',) if key in meta}
    attn_cfg = run.load().to_dict()['model'].get('backbone', {}).get('attn_cfg')
    path = weights_file(folder, run)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_checkpoint(path, state, dict(kept, **run.values, seed=run.seed, attn_cfg=attn_cfg))


def _environment() -> Dict[str, str]:
    # One thread each: those of two processes would spin against each other.
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get('PYTHONPATH'))))
    return dict(os.environ, OMP_NUM_THREADS='1', PYTHONPATH=path)


def _command(here: Path, *words: object) -> None:
    """Run a command of the package, with its output in ``log.txt``.

    Raises:
        RuntimeError: it failed; the message is its last line.
    """
    log = here / 'log.txt'
    with log.open('a') as file:
        process = subprocess.Popen(
            [sys.executable, '-m', 'mmlinattn', *map(str, words)],
            stdout=file, stderr=subprocess.STDOUT, env=_environment(), start_new_session=True,
        )  # fmt: skip
        _running.add(process)
        try:
            code = process.wait()
        finally:
            _running.discard(process)
    if code:
        lines = log.read_text(errors='replace').strip().splitlines() or ['no output']
        raise RuntimeError(f'mmlinattn {words[0]} ended with code {code}: {lines[-1]}')


def _write(cfg: Config, path: Path) -> Path:
    """Write a config file as Python literals: formatted it would take a second."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, ''.join(f'{key} = {value!r}\n' for key, value in cfg.to_dict().items()))
    return path
