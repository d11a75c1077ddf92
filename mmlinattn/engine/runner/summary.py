"""Summary of a run in about 15 lines, printed before its first iteration."""

import math
from collections import Counter
from pathlib import Path
from typing import Any, Iterator, List, Tuple

import torch
from mmengine.device import get_device
from mmengine.dist import get_world_size
from mmengine.evaluator import Evaluator
from mmengine.optim import AmpOptimWrapper, OptimWrapper, OptimWrapperDict
from mmengine.runner import BaseLoop, Runner
from torch import nn
from torch.utils.data import DataLoader

from ...models.layers import BaseAttention
from ...utils import redacted
from ...utils.pretrained import pretrained_inits
from ..preflight.sample_loading import base_datasets

Row = Tuple[str, str]


def summary(runner: Runner) -> str:
    """Return what a run will do, one fact in each line, for a runner whose loops are built."""
    rows = [*_model(runner), *_work(runner), *_place(runner)]
    width = max(len(name) for name, _ in rows)
    return '\n'.join(['', *(f'  {name:<{width}}  {text}' for name, text in rows)])


def _model(runner: Runner) -> Iterator[Row]:
    model = getattr(runner.model, 'module', runner.model)
    if runner.cfg.filename:
        yield 'config', _shorten(runner.cfg.filename)
    section = runner.cfg.get('model') or {}
    yield 'model', type(model).__name__
    if section.get('type') == 'ExportedModel':
        yield 'file', section['file']
    count = sum(p.numel() for p in model.parameters())
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    what = f', {_million(trained)} trained' if _is_built(runner._train_loop) else ''
    if count:
        yield 'parameters', f'{_million(count)}{what}'
    backbone = getattr(model, 'backbone', None)
    if isinstance(backbone, nn.Module):
        options = section.get('backbone') or {}
        size = options.get('arch', options.get('depth', ''))
        size = f' {size}' if isinstance(size, (str, int)) and size != '' else ''
        yield 'backbone', f'{type(backbone).__name__}{size}'
    kinds = Counter(type(m).__name__ for m in model.modules() if isinstance(m, BaseAttention))
    if kinds:
        yield 'attention', ', '.join(f'{number} x {kind}' for kind, number in kinds.items())
    source = runner._load_from
    if source:
        name = 'resumed from' if getattr(runner, '_resume', False) else 'weights'
        yield name, redacted(str(source))
    elif isinstance(backbone, nn.Module):
        given = pretrained_inits(getattr(backbone, 'init_cfg', None))
        files = [init['checkpoint'] for init in given]
        yield 'weights', f'backbone from {redacted(files[0])}' if files else 'random'


def _work(runner: Runner) -> Iterator[Row]:
    processes = get_world_size()
    loops = dict(train=runner._train_loop, val=runner._val_loop, test=runner._test_loop)
    built = {name: loop for name, loop in loops.items() if _is_built(loop)}
    for name, loop in built.items():
        yield f'{name} data', _data(loop.dataloader)
    for name, loop in built.items():
        size = getattr(loop.dataloader.batch_sampler, 'batch_size', None) or 1
        if name == 'train':
            steps = (runner.cfg.get('optim_wrapper') or {}).get('accumulative_counts', 1)
            more = ''.join(
                f' x {number} {what}'
                for number, what in ((processes, 'processes'), (steps, 'steps')) if number > 1
            )  # fmt: skip
            total = f' = {size * processes * steps}' if more else ''
            yield 'batch', f'{size}{more}{total}'
            yield 'schedule', _schedule(loop, 'val' in built)
            yield from _optimizer(runner)
        elif name == 'test':
            yield 'batch', f'{size}' + (f' x {processes} processes' if processes > 1 else '')
        if name != 'train' and isinstance(getattr(loop, 'evaluator', None), Evaluator):
            metrics = [type(metric).__name__ for metric in loop.evaluator.metrics]
            yield f'{name} metrics', ', '.join(metrics)


def _data(loader: DataLoader) -> str:
    parts = [*base_datasets(loader.dataset)]
    kinds = ' + '.join(dict.fromkeys(type(part).__name__ for part in parts))
    roots = ', '.join(dict.fromkeys(filter(None, (_root(part) for part in parts))))
    size = f', {_count(len(loader.dataset), "image")}' if hasattr(loader.dataset, '__len__') else ''
    return f'{kinds}{size}' + (f', {roots}' if roots else '')


def _root(dataset: Any) -> str:
    found = getattr(dataset, 'ann_file', '') or getattr(dataset, 'data_root', '')
    return found if isinstance(found, str) else ''


def _schedule(loop: Any, validates: bool) -> str:
    validation = f', validation every {loop.val_interval}' if validates else ''
    if type(loop).__name__ == 'IterBasedTrainLoop':
        return f'{_count(loop.max_iters, "iteration")}{validation}'
    epochs, batches = _count(loop.max_epochs, 'epoch'), len(loop.dataloader)
    return f'{epochs} of {_count(batches, "iteration")}{validation}'


def _optimizer(runner: Runner) -> Iterator[Row]:
    wrapper = runner.optim_wrapper
    if isinstance(wrapper, OptimWrapperDict):
        yield 'optimizer', ', '.join(type(w.optimizer).__name__ for w in wrapper.values())
        return
    optimizer = wrapper.optimizer
    # The schedulers may have begun with another rate: `initial_lr` is that of the config.
    rates = {group.get('initial_lr', group['lr']) for group in optimizer.param_groups}
    decay = {group.get('weight_decay', 0) for group in optimizer.param_groups}
    schedulers = runner.param_schedulers or []
    schedulers = schedulers if isinstance(schedulers, list) else [schedulers]
    kinds = [type(s).__name__ if not isinstance(s, dict) else s['type'] for s in schedulers]
    then = f'; {", ".join(map(str, kinds))}' if kinds else ''
    yield (
        'optimizer',
        (f'{type(optimizer).__name__}, lr {_range(rates)}, weight decay {_range(decay)}{then}'),
    )
    yield 'precision', _precision(wrapper)


def _precision(wrapper: OptimWrapper) -> str:
    if isinstance(wrapper, AmpOptimWrapper):
        dtype = wrapper.cast_dtype or torch.float16
        return f'{str(dtype).removeprefix("torch.")} autocast'
    return 'float32'


def _place(runner: Runner) -> Iterator[Row]:
    device, processes = get_device(), get_world_size()
    name = device
    if device == 'cuda':
        name = torch.cuda.get_device_name()
    elif device == 'cpu':
        name = f'{device}, {_count(torch.get_num_threads(), "thread")}'
    yield 'device', f'{name} x {processes}' if processes > 1 else name
    log_file = getattr(runner.logger, 'log_file', None)
    if log_file:
        yield 'log file', f'{_shorten(log_file)}: environment, config, hooks, initial weights'
    yield 'work dir', _shorten(runner.work_dir)


def _shorten(path: str) -> str:
    """Return a path relative to the current folder if it is inside."""
    found, folder = Path(path).absolute(), Path.cwd()
    return str(found.relative_to(folder)) if found.is_relative_to(folder) else str(path)


def _is_built(loop: Any) -> bool:
    return isinstance(loop, BaseLoop)


def _count(number: int, what: str) -> str:
    return f'{number} {what}' if number == 1 else f'{number} {what}s'


def _million(count: int) -> str:
    return f'{count / 1e6:.2f} M'


def _range(values: set) -> str:
    numbers: List[float] = sorted(values)
    ends = dict.fromkeys(f'{number:.3g}' for number in (numbers[0], numbers[-1]))
    return ' to '.join(ends) if all(map(math.isfinite, numbers)) else str(numbers)
