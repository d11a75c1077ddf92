"""Scores of the teacher and of the student's stages, and their report: JSON and tables."""

import copy
from pathlib import Path
from typing import Any, Dict, List, Optional

from mmengine.config import Config

from .. import evaluation  # noqa: F401  registers the metrics that configs name
from ..engine.preflight.weights import check_weights
from ..engine.runner.runner import PluginRunner
from ..utils import write_json, write_text

# Names of the score that summarises a framework's metrics, by priority.
MAIN = ('mIoU', 'coco/bbox_mAP', 'bbox_mAP', 'accuracy/top1', 'top1', 'mAP')
UNUSED = (
    'train_dataloader', 'train_cfg', 'optim_wrapper', 'param_scheduler',
    'test_dataloader', 'test_cfg', 'test_evaluator',
)  # fmt: skip
TITLES = dict(
    teacher='teacher',
    swap='direct swap',
    a='after A (attentions)',
    b='after B (outputs)',
    c='after C (fine-tuning)',
)


def score(
    cfg: Config, checkpoint: str, work_dir: Path, name: str, launcher: str = 'none'
) -> Dict[str, float]:
    """Return the scores of a checkpoint on ``val_dataloader``, by their names."""
    cfg = copy.deepcopy(cfg)
    for key in UNUSED:
        cfg.pop(key, None)
    cfg.work_dir, cfg.launcher, cfg.experiment_name = str(work_dir), launcher, f'score_{name}'
    cfg.load_from, cfg.resume = checkpoint, False
    if cfg.get('visualizer'):
        cfg.visualizer.pop('name', None)
    runner = PluginRunner.from_cfg(cfg)
    check_weights(runner, cfg, testing=True)
    return {name: float(value) for name, value in runner.val().items()}


def main_score(scores: Dict[str, float]) -> Optional[str]:
    """Return the name of the score that stands for all.

    Example:
        >>> main_score({'aAcc': 90.0, 'mIoU': 70.0})
        'mIoU'
    """
    for ending in MAIN:
        for name in scores:
            if name == ending or name.endswith(f'/{ending}'):
                return name
    return next(iter(scores), None)


def recovered(record: Dict[str, Any], stage: str) -> Optional[float]:
    """Return the share of the gap between direct swap and teacher that a stage closes.

    Returns:
        1.0 at the teacher's main score; None without scores or without a gap.

    Example:
        >>> scores = dict(teacher=dict(mIoU=80.0), swap=dict(mIoU=30.0), b=dict(mIoU=75.0))
        >>> recovered(dict(scores=scores), 'b')
        0.9
        >>> recovered(dict(scores=dict(scores, swap=dict(mIoU=81.0))), 'b') is None
        True
    """
    scores = record.get('scores') or {}
    if not {'teacher', 'swap', stage} <= scores.keys():
        return None
    name = main_score(scores['teacher'])
    top, bottom, found = (scores[key].get(name) for key in ('teacher', 'swap', stage))
    if None in (top, bottom, found) or top <= bottom:
        return None
    return (found - bottom) / (top - bottom)


def markdown(record: Dict[str, Any]) -> str:
    """Return the page of a report."""
    options = record['options']
    lines = [
        '# Linearized model',
        '',
        f'`{options["attn"]["type"]}` in layers {_listed(record["replaced"])}'
        + (f', softmax in {_listed(record["kept"])}' if record['kept'] else '')
        + f'. A: {options["iters_a"]} iterations, B: {options["iters_b"]}, batch size '
        f'{options["batch_size"]} x {record["processes"]}, seed {options["seed"]}'
        + (f', {record["images"]} images without labels.' if record['images'] else '.'),
        '',
    ]
    scores = record.get('scores') or {}
    if scores:
        names = list(scores['teacher'])
        rows = []
        for stage in (stage for stage in TITLES if stage in scores):
            share = recovered(record, stage)
            cells = [f'{scores[stage].get(name, float("nan")):.4g}' for name in names]
            rows.append([TITLES[stage], *cells, '' if share is None else f'{100 * share:.0f}%'])
        lines += ['## Scores', '', *_table(['', *names, 'gap closed'], rows), '']
    errors = record.get('errors') or {}
    if errors:
        blocks = list(next(iter(errors.values())))
        rows = [[name, *(f'{errors[stage][name]:.3f}' for stage in errors)] for name in blocks]
        lines += ['## Error of each attention', '']
        lines += ["Squared error over the teacher's mean square, on the teacher's inputs.", '']
        lines += [*_table(['', *(TITLES[stage] for stage in errors)], rows), '']
    return '\n'.join(lines)


def write_report(folder: Path, record: Dict[str, Any]) -> None:
    """Write ``report.json`` and ``report.md``."""
    shares = {stage: recovered(record, stage) for stage in ('a', 'b', 'c')}
    found = dict(record, gap_closed={k: v for k, v in shares.items() if v is not None})
    write_json(folder / 'report.json', found)
    write_text(folder / 'report.md', markdown(record))


def _table(head: List[str], rows: List[List[str]]) -> List[str]:
    rule = ['---', *['---:'] * (len(head) - 1)]
    return [f'| {" | ".join(row)} |' for row in [head, rule, *rows]]


def _listed(numbers: List[int]) -> str:
    return ', '.join(map(str, numbers))
