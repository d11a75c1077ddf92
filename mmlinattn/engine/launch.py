"""What ``tools/train.py`` and ``tools/test.py`` share: configs, checks before work, the runner."""

import difflib
import logging
import os.path as osp
from pathlib import Path
from typing import Dict, Iterator, Optional

import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.dist import is_distributed
from mmengine.logging import print_log
from mmengine.model import is_model_wrapper, revert_sync_batchnorm
from mmengine.registry import init_default_scope
from mmengine.runner import Runner, find_latest_checkpoint
from torch import nn

from ..checkpoints import CheckpointError, Report, check_fits

# How to get a data set whose folder is missing, by the name of the folder.
DATA_HINTS = {
    'shapes': 'make it with: python -m mmlinattn.datasets.shapes {root}',
    'camvid': 'see docs/datasets.md#camvid for the download and the expected folders',
    'bccd': 'see docs/datasets.md#bccd for the download and the expected folders',
    'coco': 'see docs/datasets.md#coco',
    'cityscapes': 'see docs/datasets.md#cityscapes',
    'ADEChallengeData2016': 'see docs/datasets.md#ade20k',
    'imagenet': 'see docs/datasets.md#imagenet',
}
TOP_LEVEL = {
    'work_dir', 'load_from', 'resume', 'randomness', 'auto_scale_lr', 'train_cfg', 'val_cfg',
    'test_cfg', 'train_dataloader', 'val_dataloader', 'test_dataloader', 'val_evaluator',
    'test_evaluator', 'optim_wrapper', 'param_scheduler', 'default_hooks', 'custom_hooks',
    'visualizer', 'log_processor', 'log_level', 'launcher', 'env_cfg', 'experiment_name',
    'default_scope', 'data_preprocessor', 'model_wrapper_cfg', 'find_unused_parameters', 'compile',
}  # fmt: skip
# Parts that may have another shape in a checkpoint to fine-tune from: other classes.
HEADS = ('bbox_head.', 'roi_head.', 'rpn_head.', 'decode_head.', 'auxiliary_head.', 'head.')


def load_config(path: str, cfg_options: Optional[dict] = None) -> Config:
    """Reads a config file and merges options of the command line into it.

    Args:
        path: config file.
        cfg_options: dotted names to values, as ``--cfg-options`` gives them.

    Raises:
        FileNotFoundError: no such config.
        ValueError: an option whose first part is neither in the config nor known to MMEngine's
            Runner; it would be ignored silently.
    """
    if not osp.isfile(path):
        raise FileNotFoundError(f'config {path!r} does not exist')
    cfg = Config.fromfile(path)
    known = TOP_LEVEL | set(cfg.keys())
    for option in cfg_options or {}:
        top = option.split('.')[0]
        if top not in known:
            close = difflib.get_close_matches(top, known, n=3)
            raise ValueError(
                f'--cfg-options {option}: the config has no {top!r}'
                + (f'; did you mean {" or ".join(close)}?' if close else '')
            )
    if cfg_options:
        before = _annotation_files(cfg)
        cfg.merge_from_dict(cfg_options)
        for split, path in _annotation_files(cfg).items():
            # The scores are of the annotations that the loader reads, wherever they moved.
            if cfg[f'{split}_evaluator'].get('ann_file') == before.get(split):
                cfg[f'{split}_evaluator'].ann_file = path
    init_default_scope(cfg.get('default_scope', 'mmengine'))
    return cfg


def _annotation_files(cfg: Config) -> Dict[str, str]:
    """Annotation file of each split whose evaluator is a single one with ``ann_file``."""
    files = {}
    for split in ('val', 'test'):
        dataset = (cfg.get(f'{split}_dataloader') or {}).get('dataset', {})
        evaluator = cfg.get(f'{split}_evaluator')
        if isinstance(evaluator, dict) and 'ann_file' in evaluator and dataset.get('ann_file'):
            files[split] = osp.join(dataset.get('data_root') or '', dataset['ann_file'])
    return files


def set_work_dir(cfg: Config, config_path: str, work_dir: Optional[str]) -> None:
    """``work_dir``, else the config's own, else ``work_dirs/<name of the config>``."""
    if work_dir is not None:
        cfg.work_dir = work_dir
    elif cfg.get('work_dir') is None:
        cfg.work_dir = osp.join('work_dirs', Path(config_path).stem)


def use_amp(cfg: Config, requested: bool) -> None:
    """Turns mixed precision on (``--amp``) and picks the wrapper that the device can run."""
    kind = cfg.optim_wrapper.get('type', 'OptimWrapper')
    if requested and kind == 'OptimWrapper':
        kind = 'AmpOptimWrapper'
        cfg.optim_wrapper.setdefault('loss_scale', 'dynamic')
    if requested and kind != 'AmpOptimWrapper':
        raise ValueError(f'--amp: optim_wrapper.type is {kind!r}, which has no mixed precision')
    if kind == 'AmpOptimWrapper' and get_device() == 'cpu':
        print_log('No GPU: mixed precision runs as bfloat16 autocast on the CPU.', 'current')
        kind = 'CPUAmpOptimWrapper'
        for name in ('loss_scale', 'dtype', 'use_fsdp'):
            cfg.optim_wrapper.pop(name, None)
    cfg.optim_wrapper.type = kind


def check_data(cfg: Config, *loaders: str) -> None:
    """Raises FileNotFoundError for a data folder or annotation file that is not there.

    Args:
        cfg: the config.
        loaders: names of the data loaders that will be used, such as ``'train_dataloader'``.
    """
    for loader in loaders:
        for dataset in _datasets(cfg.get(loader) or {}):
            root = dataset.get('data_root') or ''
            ann_file = dataset.get('ann_file') or ''
            prefixes = dataset.get('data_prefix') or {}
            prefixes = [prefixes] if isinstance(prefixes, str) else prefixes.values()
            for part in ('', ann_file, *prefixes):
                path = osp.join(root, part) if isinstance(part, str) else root
                if path and '://' not in path and not osp.exists(path):
                    raise FileNotFoundError(
                        f'{loader}: {path!r} does not exist (data_root={root!r}); '
                        + _data_hint(root or path)
                    )


def _datasets(node) -> Iterator[dict]:
    """Every data set config inside a data loader config, wrappers included."""
    if isinstance(node, dict):
        if 'data_root' in node or 'ann_file' in node:
            yield node
        for value in node.values():
            yield from _datasets(value)
    elif isinstance(node, (list, tuple)):
        for value in node:
            yield from _datasets(value)


def _data_hint(root: str) -> str:
    # From the outside in: data/shapes/coco is Shapes, not COCO.
    for base in (*reversed(Path(root).parents), Path(root)):
        if base.name in DATA_HINTS:
            return DATA_HINTS[base.name].format(root=base)
    return 'set another folder with --cfg-options, see docs/datasets.md'


class PluginRunner(Runner):
    """MMEngine's runner, with plain batch norm where synchronised batch norm cannot run."""

    def wrap_model(self, model_wrapper_cfg: Optional[dict], model: nn.Module) -> nn.Module:
        if is_distributed() and get_device() == 'cpu' and model_wrapper_cfg is None:
            # The default wrapper asks for a GPU by its number.
            model_wrapper_cfg = dict(
                type='MMDistributedDataParallel',
                device_ids=None,
                broadcast_buffers=False,
                find_unused_parameters=self.cfg.get('find_unused_parameters', False),
            )
        return super().wrap_model(model_wrapper_cfg, plain_batch_norm(model))


def plain_batch_norm(model: nn.Module) -> nn.Module:
    """SyncBN becomes BN, and says so, in one process and on the CPU."""
    if is_distributed() and get_device() != 'cpu':
        return model
    if not any(isinstance(module, nn.SyncBatchNorm) for module in model.modules()):
        return model
    why = 'the CPU cannot synchronise' if is_distributed() else 'there is only one process'
    print_log(f'SyncBN becomes BN: {why}.', 'current', level=logging.WARNING)
    return revert_sync_batchnorm(model)


def check_weights(runner: Runner, cfg: Config, testing: bool = False) -> None:
    """Reads every checkpoint that the run will load and compares it with the model.

    Raises:
        FileNotFoundError: no such file.
        mmlinattn.checkpoints.CheckpointError: a truncated file, no key in common, or a shape that
            does not fit; testing or resuming, also a name that the file lacks. When
            fine-tuning from ``load_from``, heads may differ (another number of
            classes) and are reported.
    """
    model = runner.model.module if is_model_wrapper(runner.model) else runner.model
    if cfg.get('load_from') and '://' not in cfg.load_from:
        whole = testing or cfg.get('resume')
        report = check_fits(cfg.load_from, model, may_differ=() if whole else HEADS)
        _report('load_from', report)
        if whole and report.missing:
            raise CheckpointError(f'{cfg.load_from} is not of this whole model: {report}')
    if testing or cfg.get('resume'):
        return
    for name, module in model.named_modules():
        init_cfg = getattr(module, 'init_cfg', None)
        for init in init_cfg if isinstance(init_cfg, list) else [init_cfg or {}]:
            if init.get('type') == 'Pretrained' and '://' not in init['checkpoint']:
                _report(f'{name}.init_cfg', _check_pretrained(name, module, init))


def _check_pretrained(name: str, module: nn.Module, init: dict) -> Report:
    try:
        return check_fits(init['checkpoint'], module, prefix=init.get('prefix'))
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f'{error}; {name}.init_cfg starts from it. Convert released weights with '
            'tools/model_converters/convert.py, or train from scratch with '
            f'--cfg-options model.{name}.init_cfg=None'
        ) from error


def _report(name: str, report: Report) -> None:
    print_log(f'{name}: {report}', 'current')


def set_launcher(cfg: Config, launcher: str) -> None:
    """``--launcher``; where there is no GPU the processes are joined by gloo, here.

    MMEngine's own start of distributed training needs a GPU. Without one, only ``'pytorch'``
    serves; another launcher raises ValueError.
    """
    cfg.launcher = launcher
    if launcher == 'none' or get_device() != 'cpu':
        return
    if launcher != 'pytorch':
        raise ValueError(f'--launcher {launcher} needs GPUs; on the CPU use pytorch (torchrun)')
    # Multi-threaded processes on the same cores spin against each other.
    torch.set_num_threads(1)
    torch.distributed.init_process_group('gloo')


def leave_process_group() -> None:
    """Ends distributed work in all processes together; does nothing in a single process.

    A process that exits while a thread of gloo still holds a tensor of the last collective may be
    aborted by the interpreter's shutdown ("terminate called without an active exception").
    """
    if is_distributed():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def set_resume(cfg: Config, resume: Optional[str]) -> None:
    """``--resume``: None, ``'auto'`` (the newest in the work directory, if any) or a path."""
    if resume is None:
        return
    found = find_latest_checkpoint(cfg.work_dir) if resume == 'auto' else resume
    if found is None:
        print_log(f'--resume: no checkpoint in {cfg.work_dir!r} yet, training starts', 'current')
        return
    cfg.resume, cfg.load_from = True, found


def scale_lr(cfg: Config) -> None:
    """``--auto-scale-lr``; raises ValueError where the config gives no batch size to scale from."""
    if 'base_batch_size' not in cfg.get('auto_scale_lr', {}):
        raise ValueError('--auto-scale-lr: the config has no auto_scale_lr.base_batch_size')
    cfg.auto_scale_lr.enable = True


def set_pictures(cfg: Config, show_dir: Optional[str]) -> None:
    """``--show-dir``: every test image is drawn, ground truth beside prediction."""
    if show_dir is None:
        return
    show_dir = osp.abspath(show_dir)
    options = {
        'DetVisualizationHook': dict(draw=True, interval=1, test_out_dir=show_dir),
        'SegVisualizationHook': dict(draw=True, interval=1),
        'VisualizationHook': dict(enable=True, interval=1, out_dir=show_dir),
    }
    kind = cfg.default_hooks.get('visualization', {}).get('type')
    if kind not in options:
        raise ValueError(f'--show-dir: default_hooks.visualization is {kind!r}, which cannot draw')
    cfg.default_hooks.visualization.update(options[kind])
    cfg.visualizer.save_dir = show_dir


def set_predictions_file(cfg: Config, path: Optional[str]) -> None:
    """``--out``: all predictions, pickled."""
    if path is None:
        return
    kind = 'DumpDetResults' if cfg.get('default_scope') == 'mmdet' else 'DumpResults'
    metrics = cfg.test_evaluator
    metrics = list(metrics) if isinstance(metrics, (list, tuple)) else [metrics]
    cfg.test_evaluator = [*metrics, dict(type=kind, out_file_path=path)]
