"""Check that checkpoints fit the model, before a run starts."""

from mmengine.config import Config
from mmengine.logging import print_log
from mmengine.model import BaseModule

from ...checkpoints import CheckpointError, check_complete, check_fits, read_checkpoint
from ...checkpoints.compare import HEADS
from ...utils.messages import log_warning
from ...utils.pretrained import pretrained_inits, without_pretrained
from ..config_files import pretraining_config
from ..model import unwrapped
from ..runner.runner import PluginRunner
from .classes import check_same_classes, class_folders
from .data import DataError, dataset_configs, lazy_dataset


def check_weights(runner: PluginRunner, cfg: Config, testing: bool = False) -> None:
    """Read every checkpoint that the run will load and compare it with the model.

    Raises:
        FileNotFoundError: no such file.
        mmlinattn.checkpoints.CheckpointError: a file cannot be read or does not fit, or in a test
            or on resume lacks a key. Heads may differ when fine-tuning from ``load_from``.
        DataError: in a test or on resume the classes have another order than those of the data.
    """
    model = unwrapped(runner.model)
    if cfg.get('load_from'):
        is_complete = testing or cfg.get('resume')
        content = read_checkpoint(cfg.load_from)
        may_differ = () if is_complete else HEADS
        report = check_fits(cfg.load_from, model, may_differ=may_differ, read=lambda _: content)
        option = 'checkpoint' if testing else 'resume' if cfg.get('resume') else 'load_from'
        print_log(f'{option}: {report}', 'current')
        if is_complete:
            check_complete(cfg.load_from, report)
        _check_classes(cfg, content['meta'], 'test' if testing else 'train', is_complete)
    if testing:
        return
    if cfg.get('resume') and cfg.get('load_from'):
        # The checkpoint has all weights, and the files that the training began with may be gone.
        for module in model.modules():
            if isinstance(module, BaseModule):
                module.init_cfg = without_pretrained(module.init_cfg)
        return
    for name, module in model.named_modules():
        for init in pretrained_inits(getattr(module, 'init_cfg', None)):
            _check_pretrained(f'{name}.init_cfg'.lstrip('.'), module, init)


def _check_classes(cfg: Config, meta: dict, split: str, fatal: bool) -> None:
    """Raise DataError, or warn, if a checkpoint has the classes of a split in another order."""
    loader = f'{split}_dataloader'
    known = (meta.get('dataset_meta') or {}).get('classes')
    for config in dataset_configs(cfg.get(loader) or {}):
        dataset = lazy_dataset(config)
        classes = getattr(dataset, 'metainfo', {}).get('classes')
        folders = () if classes else class_folders(dataset)
        if (classes or folders) and known:
            lists = {str(cfg.load_from): known, loader: classes or folders}
            lists = {place: tuple(names) for place, names in lists.items()}
            # A folder that is missing or new moves the labels of those behind it.
            others = {label: name for label, name in enumerate(folders) if name in known}
            is_moved = any(tuple(known[i : i + 1]) != (name,) for i, name in others.items())
            # Fine-tuning with another number of classes starts with a new head.
            is_comparable = fatal or len(folders) == len(known)
            for finding in check_same_classes(lists, is_moved and is_comparable):
                text = f'{finding.where}: {finding.what}'
                if fatal:
                    raise DataError(text)
                log_warning(f'{text}. The head starts from weights of other classes')


def _check_pretrained(name: str, module: BaseModule, init: dict) -> None:
    source = init.get('checkpoint')
    if not source:
        raise ValueError(f"model.{name} has type='Pretrained', which needs checkpoint=FILE")
    try:
        content = read_checkpoint(source)
    except FileNotFoundError as error:
        here = f'{error}; {name} starts from it. '
        if config := pretraining_config(source):
            here += f'Train it with {config} and copy its checkpoint there, or convert released '
            here += 'weights to this file (docs/weights.md). '
        raise FileNotFoundError(
            f'{here}To start from other weights, such as '
            'released ones converted by mmlinattn convert, add '
            f'--cfg-options model.{name}.checkpoint=FILE; to train from scratch, add '
            f'--cfg-options model.{name}=None'
        ) from error
    try:
        report = check_fits(source, module, prefix=init.get('prefix'), read=lambda _: content)
        print_log(f'{name}: {report}', 'current')
    except CheckpointError as error:
        # Backbones of the frameworks (Swin, ViT, ...) may convert or resize weights.
        is_own = type(module).__module__.startswith('mmlinattn.')
        if is_own or type(module).init_weights is BaseModule.init_weights:
            raise
        print_log(f'{name}: {error}; {type(module).__name__} may convert it', 'current')
