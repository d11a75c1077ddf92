"""Reading of config files, with the options of the command line, and checks of their structure."""

import ast
import importlib.util
import os.path as osp
import re
import sys
import traceback
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Dict, Iterator, Optional, Tuple
from unittest.mock import patch

from mmengine.config import Config
from mmengine.config.utils import MODULE2PACKAGE
from mmengine.hooks import Hook
from mmengine.registry import init_default_scope
from mmengine.utils import import_modules_from_strings

from ..utils import dicts, has_user, nodes, redacted, type_name
from ..utils.command_line import error_text
from ..utils.messages import known_messages_hidden, log_warning
from ..utils.suggest import did_you_mean
from .config_files import config_file
from .preflight.data import annotation_path
from .preflight.options import TOP_LEVEL, check_options, nearest

DICTS = (
    'model', 'train_dataloader', 'val_dataloader', 'test_dataloader', 'optim_wrapper',
    'default_hooks', 'train_cfg', 'val_cfg', 'test_cfg', 'env_cfg', 'randomness', 'log_processor',
    'auto_scale_lr', 'visualizer',
)  # fmt: skip
# Sections of MMDetection 2.x and its like -> their present form.
OLD = {
    'optimizer': "optim_wrapper=dict(type='OptimWrapper', optimizer=...)",
    'lr_config': 'param_scheduler', 'total_epochs': 'train_cfg',
    'evaluation': 'train_cfg.val_interval',
    'checkpoint_config': 'default_hooks.checkpoint', 'log_config': 'default_hooks.logger',
}  # fmt: skip
BASES = re.compile(r'^[ \t"]*_base_"?\s*[=:]|\bread_base\b', re.MULTILINE)
FRAMEWORKS = ('mmdet', 'mmseg', 'mmpretrain')


def load_config(path: str, cfg_options: Optional[dict] = None) -> Config:
    """Read a config file and merge options of the command line into it.

    Args:
        path: config file, or the name of one of this package; see :func:`.config_file`.
        cfg_options: mapping of dotted names to values, as ``--cfg-options`` gives them.

    Raises:
        FileNotFoundError: no such config.
        ValueError: the code of the file fails, MMEngine's Runner does not know the first part of an
            option or a section of the file, and would silently ignore it, or an address has a user
            or a password.
        TypeError, KeyError: see :func:`check_structure` and
            :func:`.preflight.options.check_options`.
    """
    path = config_file(path)
    # Let custom_imports find modules beside the config and in the current folder. Python itself
    # looks there with `python -m` alone, and never beside a config.
    for folder in (Path(path).resolve().parent, Path.cwd()):
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
    try:
        with _onedl_mmseg_found():
            cfg = Config.fromfile(path)
    except (SyntaxError, OSError) as error:  # some of the messages do not name the file
        raise type(error)(f'config {path}: {error}') from error
    except ImportError as error:
        if not str(error).startswith('Failed to import'):
            raise
        raise _import_error(error, path) from error
    except Exception as error:
        if str(error).startswith('mmengine does not support to load'):
            raise _prefix_error(error, path) from error
        frames = traceback.extract_tb(error.__traceback__)
        lines = [f for f in frames if f.name == '<module>']  # of the config or a base
        if not lines:
            raise
        where = f'config {lines[0].filename}, line {lines[0].lineno}'
        raise ValueError(f'{where}: {type(error).__name__}: {error_text(error)}') from error
    import_framework(cfg)
    _check_names(cfg, path)
    for option in cfg_options or {}:
        _check_override(option, cfg)
    if cfg_options:
        before = _annotation_files(cfg)
        _merge(cfg, cfg_options)
        if any(option.split('.')[0] == 'custom_imports' for option in cfg_options):
            _import_custom(cfg.custom_imports, path)  # MMEngine imports those of the file alone
        for split, path in _annotation_files(cfg).items():
            # Keep scoring with the annotations that the loader reads.
            if cfg[f'{split}_evaluator'].get('ann_file') == before.get(split):
                cfg[f'{split}_evaluator'].ann_file = path
    for _, node in dicts(cfg._cfg_dict):
        node.pop('_delete_', None)  # MMEngine leaves it where there was no such section before
    check_structure(cfg)
    check_no_passwords(cfg)
    check_options(cfg)
    init_default_scope(cfg.get('default_scope') or 'mmengine')
    return cfg


def load_image_config(path: str, cfg_options: Optional[dict] = None) -> Config:
    """Return :func:`load_config`, or raise ValueError if the model takes videos."""
    cfg = load_config(path, cfg_options)
    if 'VideoRecognizer' in str((cfg.get('model') or {}).get('type')):
        raise ValueError(f'{path} is a config for videos, which this command does not support')
    return cfg


def _import_error(error: ImportError, path: str) -> ImportError:
    """Return an error of ``custom_imports`` with its first cause, which MMEngine leaves out."""
    cause: BaseException = error
    while str(cause).startswith('Failed to import') and cause.__context__:  # MMEngine's own errors
        cause = cause.__context__
    return ImportError(
        f'config {path}: custom_imports: {cause}. Put a module of your own beside the config or in '
        'the current folder, or add its folder to PYTHONPATH'
    )


def _prefix_error(error: Exception, path: str) -> ValueError:
    """Return an error with the cure for a base config whose prefix MMEngine does not know."""
    prefix = str(error).split()[6]
    if prefix == 'mmlinattn':
        cure = ': give the path of the file, or write all that a config of this package inherits '
        cure += 'into your own: python tools/misc/print_config.py NAME > my_config.py'
    else:
        cure = f' names no package; known are {", ".join(MODULE2PACKAGE)}'
    return ValueError(f"config {path}: _base_ = '{prefix}::...'{cure}")


def _import_custom(custom_imports: Any, path: str) -> None:
    if custom_imports is None:
        return
    modules = custom_imports.get('imports') if isinstance(custom_imports, dict) else None
    if not isinstance(modules, (str, list)):
        raise TypeError(
            f'config {path}: custom_imports is {custom_imports!r}; write '
            "custom_imports.imports=['mmlinattn','my_module']"
        )
    try:
        import_modules_from_strings(**custom_imports)
    except ImportError as error:
        raise _import_error(error, path) from error


def import_framework(cfg: Config) -> None:
    """Import the framework that ``default_scope`` names, without the messages of its import."""
    scope = cfg.get('default_scope')
    if scope is None:  # configs of Python types, such as MMDetection's
        scope = getattr((cfg.get('model') or {}).get('type'), '__module__', '').split('.')[0]
        if scope in FRAMEWORKS:
            cfg.default_scope = scope
    if scope in FRAMEWORKS and importlib.util.find_spec(scope):
        with known_messages_hidden():
            importlib.import_module(f'{scope}.datasets')
            importlib.import_module(f'{scope}.evaluation')


@contextmanager
def _onedl_mmseg_found() -> Iterator[None]:
    """Let MMEngine find ``mmseg::`` bases of OneDL's MMSegmentation inside the block."""
    with patch.dict(MODULE2PACKAGE):
        try:
            distribution(MODULE2PACKAGE['mmseg'])
        except PackageNotFoundError:  # OneDL's has another name than mmsegmentation
            MODULE2PACKAGE['mmseg'] = 'mmseg'
        yield


def _check_names(cfg: Config, path: str) -> None:
    """Raise ValueError for misspelt and old sections of a config that are not used as variables."""
    found, text = [], re.sub('#.*', '', cfg.text)
    for name in sorted({*cfg} - TOP_LEVEL - {'models'}):  # a variable of MMSegmentation's BiSeNetV2
        meant = OLD.get(name) or nearest(name, TOP_LEVEL)
        if not meant:
            continue
        if name == 'optimizer':  # a variable in many configs, which optim_wrapper reads
            if {name, 'optim_wrapper'} & _assigned(path) == {name}:
                found.append(f'{name!r}: write {meant}')
            continue
        assigned = re.findall(rf'^[ \t"\']*{name}["\']?\s*[=:]', text, re.MULTILINE)
        if assigned and len(assigned) == len(re.findall(rf'\b{name}\b', text)):
            part = f'{name!r}: ' + (f'write {meant}' if name in OLD else f'did you mean {meant}?')
            # A config that MMEngine wrote has variables, but no longer what was made of them.
            if re.split(r'\W', meant)[0] not in cfg or BASES.search(text):
                found.append(part)
            else:
                log_warning(f'config {path}: nothing reads {part}')
    if found:
        raise ValueError(f'config {path}: nothing reads {"; ".join(found)}')


def _assigned(path: str) -> set:
    """Return the names that a Python config assigns itself and does not use as variables."""
    tree = ast.parse(Path(path).read_text(encoding='utf-8') if path.endswith('.py') else '')
    targets = [t for s in tree.body if isinstance(s, ast.Assign) for t in s.targets]
    used = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and type(n.ctx) is ast.Load}
    return {t.id for t in targets if isinstance(t, ast.Name)} - used


def _check_override(option: str, cfg: Config) -> None:
    """Raise ValueError if nothing would read an option of the command line."""
    top = option.split('.')[0]
    if top in TOP_LEVEL:
        return
    if top in cfg:
        raise ValueError(
            f'--cfg-options {option}: {top!r} is a variable of the config file, whose value was '
            'used when the file was read; override the places that have it'
        )
    raise ValueError(
        f'--cfg-options {option}: the config has no {top!r}{did_you_mean(top, TOP_LEVEL, 3)}'
    )


def _merge(cfg: Config, options: Dict[str, Any]) -> None:
    """Merge options of the command line as MMEngine does, then those that name list elements."""
    of_elements = [name for name in options if any(map(str.isdecimal, name.split('.')))]
    rest = [_with_whole_list(cfg, *each) for each in options.items() if each[0] not in of_elements]
    cfg.merge_from_dict(dict(rest))
    for name in of_elements:
        cfg.merge_from_dict(dict([_with_whole_list(cfg, name, options[name])]))


def _with_whole_list(cfg: Config, option: str, value: Any) -> Tuple[str, Any]:
    """Return an option of the command line, with the whole list if it replaces an element.

    MMEngine merges a dict into an element that is a dict, and nothing else.
    """
    node: Any = cfg._cfg_dict
    names = option.split('.')
    for i, name in enumerate(names):
        if not isinstance(node, (list, tuple)):
            node = node.get(name) if isinstance(node, dict) else None
            continue
        place, is_last = '.'.join(names[:i]), i + 1 == len(names)
        what = f'--cfg-options {option}: {place} is a {type(node).__name__} of {len(node)} elements'
        if not name.isdecimal() or int(name) >= len(node):
            raise ValueError(
                f'{what}: name one by its number from 0, as in {place}.0, or give all of them'
            )
        if names[i + 1 :] == ['_delete_'] or (isinstance(node, tuple) and not is_last):
            raise ValueError(
                f'{what}: give the whole element, {place}.{name}=dict(_delete_=True, ...)'
            )
        old = node[int(name)]
        merges = isinstance(value, dict) and isinstance(old, dict) and not value.get('_delete_')
        if is_last and not merges:
            new = [value if j == int(name) else each for j, each in enumerate(node)]
            return place, type(node)(new)
        node = old
    return option, value


def check_structure(cfg: Config) -> None:
    """Check that sections of a config are dicts and that each ``type`` is a name or a class.

    The errors of the frameworks do not name the place in the config.

    Raises:
        TypeError: a section or ``type`` is invalid; the message names the place.
        ValueError: a transform or data set would unpickle its files.
    """
    for name in DICTS:
        if not isinstance(cfg.get(name) or {}, dict):
            raise TypeError(f'{name} of the config must be a dict, got {cfg[name]!r}')
    hooks = cfg.get('custom_hooks') or []
    for i, hook in enumerate(hooks if isinstance(hooks, (list, tuple)) else [hooks]):
        if not isinstance(hook, (dict, Hook)):
            raise TypeError(f'custom_hooks[{i}] of the config must be a dict, got {hook!r}')
    for place, node in dicts(cfg._cfg_dict.to_dict()):
        if not place:
            continue
        kind = node.get('type', 'none')
        if not (kind and isinstance(kind, str)) and not callable(kind):
            raise TypeError(f'{place}.type of the config must be a name or a class, got {kind!r}')
        if node.get('decode_backend') == 'pickle':
            raise ValueError(
                f"{place}.decode_backend of the config is 'pickle', which runs code that a data "
                "file names; write the files anew for 'numpy'"
            )
        if type_name(node) == 'OpenImagesChallengeDataset':
            raise ValueError(
                f'{place}.type of the config is OpenImagesChallengeDataset, which runs code that '
                'its hierarchy_file names; OpenImagesDataset reads JSON'
            )


def check_no_passwords(cfg: Any) -> None:
    """Raise ValueError for an address with a user or a password, since MMEngine logs the config."""
    for place, value in nodes(cfg._cfg_dict.to_dict() if isinstance(cfg, Config) else cfg):
        if isinstance(value, str) and has_user(value):
            raise ValueError(
                f'{place} of the config has a user or a password in an address, which would be '
                f'logged: {redacted(value)!r}'
            )


def _annotation_files(cfg: Config) -> Dict[str, str]:
    """Return the annotation file of each split that has a single evaluator with ``ann_file``."""
    files = {}
    for split in ('val', 'test'):
        dataset = (cfg.get(f'{split}_dataloader') or {}).get('dataset', {})
        evaluator = cfg.get(f'{split}_evaluator')
        if isinstance(evaluator, dict) and 'ann_file' in evaluator and dataset.get('ann_file'):
            files[split] = annotation_path(dataset)
    return files


def set_work_dir(cfg: Config, config_path: str, work_dir: Optional[str]) -> None:
    """Set ``cfg.work_dir`` to ``work_dir``, the config's own, or ``work_dirs/<config name>``."""
    if work_dir is not None:
        cfg.work_dir = work_dir
    elif cfg.get('work_dir') is None:
        cfg.work_dir = osp.join('work_dirs', Path(config_path).stem)
    if re.search('[\ud800-\udfff]', str(cfg.work_dir)):  # surrogates of undecodable bytes
        raise ValueError(f'work_dir {cfg.work_dir!a} is not UTF-8: choose another name')
