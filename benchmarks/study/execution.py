"""One run: the commands ``train`` and ``test``, the measured costs, and the record of all."""

import json
import logging
import platform
import statistics
import time
from pathlib import Path
from typing import Dict, List, Tuple

import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.logging import MessageHub, MMLogger
from mmengine.visualization import Visualizer

from benchmarks.machine import commit, machine, openmmlab
from mmlinattn import __main__ as program
from mmlinattn.checkpoints import load_state_dict, read_checkpoint, save_checkpoint
from mmlinattn.engine.hooks.checkpoint_hook import newest_checkpoint
from mmlinattn.utils import write_text
from mmlinattn.utils.command_line import error_text

from . import costs
from .checks import RANK_SPLITS
from .grid import Run, in_folder, linearize_options, score
from .records import lines

FRAMEWORKS = ('mmengine', 'mmcv', 'mmcv-lite', 'mmdet', 'mmsegmentation', 'mmpretrain')
CURVE_POINTS = 50
LINEAR = 'linear'  # folder of the command linearize
CONFIGS = 'configs'  # not the folder itself, where a training writes its config
COMMIT = commit()  # when the fork server has loaded this module


def facts() -> dict:
    """Return machine, versions and commit, which are needed to judge and to repeat the result."""
    versions = [f'Python {platform.python_version()}', f'torch {torch.__version__}']
    found = {name: openmmlab(name.replace('mmdet', 'mmdetection')) for name in FRAMEWORKS}
    versions += [f'{name} {found[name]}' for name in found if found[name] != 'not installed']
    device = torch.device(get_device())
    return dict(
        device=device.type, machine=machine(device), versions=', '.join(versions), commit=COMMIT
    )


def execute(run: Run, folder: Path, settings: str) -> dict:
    """Train and test a run, and return its record; that of a failed run has ``error``.

    A training that was interrupted is resumed, and so is the command ``linearize``.

    Args:
        run: the run.
        folder: folder of the study.
        settings: hash of the run's settings.
    """
    record = dict(
        run=run.name, values=run.values, seed=run.seed, rate=run.rate, settings=settings, **facts()
    )
    here, start = runs_folder(folder, run, settings), time.monotonic()
    here.mkdir(parents=True, exist_ok=True)
    record['commit'] = '; '.join(all_commits(here, record['commit']))
    try:
        metrics: Dict[str, dict] = {}
        cfg = run.load()
        if run.checkpoint:
            checkpoint = run.checkpoint
        else:
            make = linearize(run, folder, here) if run.teacher else train(cfg, here)
            checkpoint, metrics['train'], record['curve'] = make
            if run.trains:
                series = logged_by_hooks(here)
                last = {name: of[-1][1] for name, of in series.items()}
                metrics['train'] = {**last, **metrics['train']}
                record.update(dict(series=series) if series else {})
            if not run.search:
                save_weights(run, cfg, checkpoint, folder, settings)
        record['seconds'] = round(metrics.get('train', {}).pop('seconds', 0.0), 1)
        for split in run.splits:
            metrics[split] = test(run, split, checkpoint, here)
        if run.rank and not run.search:
            record['ranks'], record['spectra'] = ranks(run, checkpoint, here)
            metrics.update(mean_ranks(record['ranks']))
        check_metrics(run, metrics)
        if not run.search:
            record.update(costs.measure({run.name: cfg}, run.cost)[run.name])
        record['metrics'] = metrics
    except Exception as error:  # the other runs go on; the page lists failures
        logging.getLogger(__name__).exception(run.name)
        record['error'] = f'{type(error).__name__}: {error_text(error)}'
    # Commands are imported when they run: code of a later commit may have been read.
    record['commit'] = '; '.join(all_commits(here, commit()))
    record['wall'] = round(time.monotonic() - start, 1)
    return record


def all_commits(here: Path, commit: str) -> List[str]:
    """Return the commits of all sessions of a run, and note that of this one in its folder."""
    file = here / 'commits'
    found = file.read_text().split('\n') if file.is_file() else []
    found += [commit] if commit not in found else []
    file.write_text('\n'.join(found))
    return found


def check_metrics(run: Run, metrics: Dict[str, dict]) -> None:
    """Check that a result has the metrics of its grid.

    Raises:
        ValueError: a metric is missing or not finite.
    """
    for split, key in run.required:
        if key not in metrics.get(split, {}):
            found = ', '.join(metrics.get(split, {})) or 'none (a detector: it predicts no box)'
            raise ValueError(f'split {split} has no metric {key}; it has {found}')
        if score(dict(metrics=metrics), split, key) is None:
            raise ValueError(f'split {split}: metric {key} is {metrics[split][key]}, not finite')


def runs_folder(folder: Path, run: Run, settings: str) -> Path:
    """Return the folder of a run: other settings have another one."""
    return folder / 'runs' / f'{run.name}-{settings[:8]}'


def weights_path(folder: Path, run: Run) -> Path:
    """Return the file of the trained weights."""
    return folder / 'weights' / f'{run.name}.pth'


def train(cfg: Config, here: Path) -> Tuple[str, dict, List[list]]:
    """Run the command ``train`` and return its last checkpoint, metrics and curve."""
    command('train', write(cfg, here / CONFIGS / 'train.py'), '--work-dir', here, '--resume')
    checkpoint = newest(here)
    metrics, curve = logged(here, checkpoint)
    scaler = (read_checkpoint(checkpoint).get('optimizer') or {}).get('loss_scaler') or {}
    if '_growth_tracker' in scaler:  # steps since the last skipped or the last larger scale
        metrics['steps_without_skip'] = scaler['_growth_tracker']
    return checkpoint, metrics, curve


def linearize(run: Run, folder: Path, here: Path) -> Tuple[str, dict, List[list]]:
    """Run the command ``linearize``; return its checkpoint, and metrics and curve of all phases."""
    assert run.teacher is not None and run.linearize is not None
    weights = weights_path(folder, run.teacher)
    settings = load_state_dict(str(weights))[1].get('settings') if weights.is_file() else None
    if settings != run.teacher.settings():
        raise ValueError(f'its teacher {run.teacher.name} has no weights of these settings')
    teacher = write(run.teacher.load(), here / CONFIGS / 'teacher.py')
    out, found = here / LINEAR, [*linearize_options(run.linearize), '--seed', run.seed]
    command('linearize', teacher, weights, '--out', out, '--resume', '--no-score', *found)
    metrics, curve = dict(iterations=0, seconds=0.0), []  # type: Tuple[dict, List[list]]
    for phase in sorted(out.glob('phase_*')):
        of_phase, points = logged(phase, newest(phase))
        curve += [[metrics['iterations'] + step, loss] for step, loss in points]
        metrics.update(
            loss=of_phase['loss'],
            iterations=metrics['iterations'] + of_phase['iterations'],
            seconds=metrics['seconds'] + of_phase['seconds'],
        )
    return str(out / 'model.pth'), metrics, curve


def newest(here: Path) -> str:
    """Return the last checkpoint of a training.

    Raises:
        FileNotFoundError: there is none.
    """
    checkpoint = newest_checkpoint(str(here))
    if checkpoint is None:
        raise FileNotFoundError(f'the training left no checkpoint in {here}')
    return checkpoint


def logged(here: Path, checkpoint: str) -> Tuple[dict, List[list]]:
    """Return loss, iterations and seconds of a training, and its curve.

    Args:
        here: its folder, with the logs.
        checkpoint: its last one.

    Raises:
        ValueError: it logged no loss.
    """
    steps = scalars(here)
    if not steps:
        raise ValueError('the training logged no loss: give it at least 5 iterations')
    last = steps[-1]['step']
    iterations = read_checkpoint(checkpoint)['meta']['iter']
    metrics = dict(
        loss=statistics.mean(s['loss'] for s in steps if s['step'] > 0.9 * last),
        iterations=iterations,
        seconds=iterations * statistics.mean(s['time'] for s in steps),
    )
    every = max(1, len(steps) // CURVE_POINTS)
    return metrics, [[s['step'], s['loss']] for s in steps[::every]]


def scalars(here: Path) -> List[dict]:
    """Return the logged numbers by step; later sessions replace what they have repeated."""
    found: Dict[int, dict] = {}
    for file in sorted(here.glob('*/vis_data/scalars.json')):
        for numbers in lines(file):
            if {'step', 'loss', 'time'} <= numbers.keys():
                found[numbers['step']] = numbers
    return [found[step] for step in sorted(found)]


def logged_by_hooks(here: Path) -> Dict[str, List[list]]:
    """Return what hooks such as RippleWeightsHook have logged, [[step, number], ...] by name."""
    found: Dict[str, Dict[int, float]] = {}
    for file in sorted(here.glob('*/vis_data/scalars.json')):
        for numbers in lines(file):
            if 'iter' in numbers and 'loss' not in numbers:
                for name in numbers.keys() - {'iter', 'step'}:
                    found.setdefault(name, {})[numbers['step']] = numbers[name]
    return {name: [[step, of[step]] for step in sorted(of)] for name, of in sorted(found.items())}


def test(run: Run, split: str, checkpoint: str, here: Path) -> Dict[str, float]:
    """Run the command ``test`` on a split and return its metrics."""
    work_dir = here / split
    config = write(run.load(split), here / CONFIGS / f'{split}.py')
    command('test', config, checkpoint, '--work-dir', work_dir)
    newest = max(work_dir.glob('*/*.json'), key=lambda path: path.stat().st_mtime_ns)
    found = json.loads(newest.read_text().splitlines()[-1])
    return {key: value for key, value in found.items() if key not in ('time', 'data_time')}


def ranks(run: Run, checkpoint: str, here: Path) -> Tuple[dict, dict]:
    """Run the command ``rank`` on initial and trained weights.

    Returns:
        for each of ``RANK_SPLITS`` and matrix the rank of each layer, mean over images and heads,
        and the singular values over the largest, medians over layers, images and heads.
    """
    options = {'images': in_folder(run.rank['images'], run.data_root), 'seed': run.seed}
    options = {**run.rank, **options}
    words = [word for key, of in options.items() for word in (f'--{key.replace("_", "-")}', of)]
    by_layer, spectra = {}, {}  # type: Tuple[Dict[str, dict], Dict[str, dict]]
    for split, weights in zip(RANK_SPLITS, ((), (checkpoint,))):
        command('rank', here / CONFIGS / 'train.py', *weights, *words, '--out', here / split)
        layers = json.loads((here / split / 'rank.json').read_text())['layers']
        names = layers[0]['spectra']
        by_layer[split] = {name: [of['mean_ranks'][name] for of in layers] for name in names}
        spectra[split] = {
            name: [*map(statistics.median, zip(*(of['spectra'][name]['values'] for of in layers)))]
            for name in names
        }
    return by_layer, spectra


def mean_ranks(ranks: Dict[str, Dict[str, List[float]]]) -> Dict[str, Dict[str, float]]:
    """Return the means over the layers of the ranks of :func:`ranks`."""
    return {
        split: {matrix: statistics.mean(of) for matrix, of in found.items()}
        for split, found in ranks.items()
    }


def save_weights(run: Run, cfg: Config, checkpoint: str, folder: Path, settings: str) -> None:
    """Save the weights alone: the checkpoints are removed when the run is recorded."""
    path = weights_path(folder, run)
    path.parent.mkdir(parents=True, exist_ok=True)
    state, meta = load_state_dict(checkpoint)
    # The command visualize-key-weights reads attn_cfg.
    attn_cfg = cfg.to_dict()['model'].get('backbone', {}).get('attn_cfg')
    classes = {key: meta[key] for key in ('dataset_meta',) if key in meta}
    made_by = dict(seed=run.seed, attn_cfg=attn_cfg, run=run.name, settings=settings)
    save_checkpoint(path, state, {**run.values, **classes, **made_by})


def clean(run: Run, folder: Path, settings: str) -> None:
    """Remove the checkpoints of a recorded run, and the file that names the newest."""
    for name in ('*.pth', 'last_checkpoint'):
        for path in runs_folder(folder, run, settings).rglob(name):
            path.unlink()


def command(*arguments: object) -> None:
    """Run a command of the package in this process; its errors are raised as they are."""
    _forget()
    code = program.main([*map(str, arguments), '--debug'])
    if code:
        raise RuntimeError(f'mmlinattn {arguments[0]} ended with exit code {code}')


def write(cfg: Config, path: Path) -> Path:
    """Write a config file as Python literals: formatted it would take a second."""
    write_text(path, ''.join(f'{key} = {value!r}\n' for key, value in cfg.to_dict().items()))
    return path


def _forget() -> None:
    """Clear the global instances that MMEngine keeps by the name of the experiment."""
    for logger in MMLogger._instance_dict.values():
        for handler in logger.handlers:
            handler.close()
    for manager in (MessageHub, MMLogger, Visualizer, *Visualizer.__subclasses__()):
        manager._instance_dict.clear()
