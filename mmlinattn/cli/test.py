"""Test a checkpoint or an exported file."""

import argparse
from functools import partial
from pathlib import Path
from typing import Any, Callable

from mmengine.config import Config
from mmengine.dist import is_main_process

from .. import evaluation  # noqa: F401  registers the metrics that configs name
from ..engine import config, launch
from ..engine.model import unwrapped
from ..engine.preflight.run import check_run, check_sections
from ..engine.preflight.weights import check_weights
from ..engine.runner.runner import PluginRunner
from ..utils import check_writable, type_name
from .arguments.runs import EXPORTED
from .train import run


def prepare(args: argparse.Namespace) -> PluginRunner:
    """Check config, data and weights, and return the runner of the test."""
    cfg = config.load_config(args.config, args.cfg_options)
    check_sections(cfg, 'test')
    config.set_work_dir(cfg, args.config, args.work_dir)
    launch.set_launcher(cfg, args.launcher)
    if args.show_dir is not None:
        set_pictures(cfg, args.show_dir)
    if args.out is not None:
        set_predictions_file(cfg, args.out)
    views = views_hook(args, cfg) if args.tta else None
    cfg.load_from = args.checkpoint
    check_run(cfg, 'test')
    check_writable(Path(cfg.work_dir) / 'config.py')
    if args.checkpoint.lower().endswith(EXPORTED):
        return runner_of_exported(cfg, args.checkpoint)
    runner = PluginRunner.from_cfg(cfg)
    if views is not None:
        views.check(unwrapped(runner.model))
        if is_main_process():
            print(views.text)
        runner.register_hook(views)
    check_weights(runner, cfg, testing=True)
    runner.test_loop  # noqa: B018  built on first access
    return runner


def set_pictures(cfg: Config, show_dir: str) -> None:
    """Draw every test image (``--show-dir``), the ground truth beside the prediction."""
    show_dir = str(Path(show_dir).absolute())
    options = {
        'DetVisualizationHook': dict(draw=True, interval=1, test_out_dir=show_dir),
        'SegVisualizationHook': dict(draw=True, interval=1),
        'VisualizationHook': dict(enable=True, interval=1, out_dir=show_dir),
    }
    kind = type_name(cfg.default_hooks.get('visualization') or {})
    if kind not in options:
        raise ValueError(f'--show-dir: default_hooks.visualization is {kind!r}, which cannot draw')
    cfg.default_hooks.visualization.update(options[kind])
    cfg.visualizer.save_dir = show_dir


def set_predictions_file(cfg: Config, path: str) -> None:
    """Write all predictions to a pickle file (``--out``)."""
    check_writable(Path(path))
    kind = 'DumpDetResults' if cfg.get('default_scope') == 'mmdet' else 'DumpResults'
    metrics = cfg.test_evaluator
    metrics = list(metrics) if isinstance(metrics, (list, tuple)) else [metrics]
    cfg.test_evaluator = [*metrics, dict(type=kind, out_file_path=path)]


def views_hook(args: argparse.Namespace, cfg: Config) -> Any:
    """Let the config make views of each image, and return the hook that merges them."""
    from ..apis.augmentation import AugmentationHook, augmentation  # imports the exporters
    from ..apis.pipeline import test_dataset

    if args.show_dir and cfg.get('default_scope') == 'mmpretrain':
        raise ValueError('--show-dir: MMPretrain draws no views of --tta; leave out one of them')
    merging, steps, text = augmentation(cfg)
    test_dataset(cfg)['pipeline'] = steps
    return AugmentationHook(merging, text)


def runner_of_exported(cfg: Config, path: str) -> PluginRunner:
    """Return the runner that tests an exported file."""
    from ..deployment import check_classes, use_exported  # a checkpoint needs no exporter

    use_exported(cfg, path)
    runner = PluginRunner.from_cfg(cfg)
    metainfo = getattr(runner.test_loop.dataloader.dataset, 'metainfo', {})
    if metainfo.get('classes'):
        check_classes(unwrapped(runner.model).file, metainfo['classes'])
    return runner


def main(args: argparse.Namespace) -> Callable[[], int]:
    """Check everything, and return the function that tests."""
    runner = prepare(args)
    return partial(run, runner.test, args.debug, runner.log_dir)
