"""All checks before a run, and the audit of ``check-data``: the same functions, in one place."""

from collections import Counter
from itertools import chain
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Set, Tuple

from mmengine.config import Config
from torch import nn

from ...datasets.audit.coco import Finding, check_coco, read_json
from ...utils import dicts, key_of
from ...utils.messages import known_messages_hidden
from ..model import build_model
from . import classes, data
from .data import DataError, dataset_configs
from .evaluators import check_ignored_label, check_scored_file
from .model import HEADS, check_channels
from .sample_loading import base_datasets, sample_findings

PARTS = ('backbone', 'neck', 'roi_head', *HEADS)  # whose dicts have a type
# Options of a data set that do not choose its files.
SAME_FILES = {'pipeline', 'filter_cfg', 'metainfo', 'return_classes'}


def check_sections(cfg: Config, split: str) -> None:
    """Raise ValueError if a config lacks a section that a run of a split needs."""
    other = 'optim_wrapper' if split == 'train' else f'{split}_evaluator'
    needed = ('model', f'{split}_dataloader', f'{split}_cfg', other)
    missing = [name for name in needed if cfg.get(name) is None]
    if missing:
        raise ValueError(
            f'config {cfg.filename} has no {", ".join(missing)}: set what is missing, or inherit '
            f"it from a base config (_base_ = '{cfg.get('default_scope') or 'mmseg'}::...')"
        )


def check_run(cfg: Config, *splits: str) -> List[str]:
    """Check model, folders, classes and annotation files; return a warning a split.

    Raises:
        ValueError, FileNotFoundError: see :func:`check_channels` and :func:`check_data`.
        DataError: a check found what would end the run or give wrong results.
    """
    model = _built(cfg)
    if model is not None:
        check_channels(cfg, model)
    for split in splits:
        data.check_data(cfg, f'{split}_dataloader', f'{split}_evaluator')
    found: Dict[str, List[Finding]] = {}
    for split, finding in config_findings(cfg, splits, model):
        if finding.fatal:
            raise DataError(f'{finding.where}: {finding.what}')
        found.setdefault(split, []).append(finding)
    warnings = []
    for split, (first, *others) in found.items():
        text = f'{first.where}: {first.what}'
        if others:
            counts = Counter(finding.kind for finding in (first, *others))
            kinds = ', '.join(f'{count} of {kind!r}' for kind, count in counts.items())
            text = f'{kinds}; the first: {text}. mmlinattn check-data lists all'
        warnings.append(f'{split}_dataloader: {text}')
    return warnings


def config_findings(
    cfg: Config, splits: Sequence[str], model: Optional[nn.Module]
) -> Iterator[Tuple[str, Finding]]:
    """Yield what can be found without an image, each finding with its split."""
    contents: Dict[str, Any] = {}

    def read(path: str, backend_args: Optional[dict] = None) -> Any:
        if path not in contents:
            contents[path] = read_json(path, backend_args)
        return contents[path]

    names: Dict[bool, Dict[str, Tuple[str, ...]]] = {True: {}, False: {}}
    for split in splits:
        where = f'{split}_dataloader'
        found: List[Finding] = []
        for config in dataset_configs(cfg.get(where) or {}):
            dataset = data.lazy_dataset(config)
            if dataset is None:
                continue
            found += _dataset_findings(config, dataset, split == 'train', read)
            folders = classes.class_folders(dataset)
            metainfo = dict(getattr(dataset, 'metainfo', {}))
            listed = classes.listed_classes(dataset, read)
            found += classes.check_listed(dataset, listed)
            metainfo['classes'] = metainfo.get('classes') or folders or listed
            if model is not None:
                found += classes.check_heads(model, metainfo, where, cfg.model)
                if split == 'train':
                    found += classes.check_crop(model, config.get('pipeline') or ())
            colours = (config.get('metainfo') or {}).get('palette')
            if isinstance(colours, (list, tuple)) and len(colours) < len(metainfo['classes'] or ()):
                what = f'has {len(colours)} colours for {len(metainfo["classes"])} classes'
                found.append(Finding('class', f'{where}.dataset.metainfo.palette', what, True))
            if not isinstance(metainfo['classes'], str):
                names[bool(folders)].setdefault(where, tuple(folders or metainfo['classes']))
        found += check_scored_file(cfg, split, read)
        if model is not None:
            found += check_ignored_label(cfg, split, model)
            found += classes.check_padding(model) if split == 'train' else ()
        yield from ((split, finding) for finding in found)
    for are_folders, lists in names.items():
        if lists and not hasattr(model, 'language_model'):
            for finding in classes.check_same_classes(lists, are_folders):
                yield finding.where.partition('_')[0], finding


def _dataset_findings(
    config: dict, dataset: Any, trained: bool, read: Callable
) -> Iterator[Finding]:
    """Yield the findings in the classes of a data set and in the records of its COCO file."""
    if not classes.is_coco(dataset):
        yield from classes.check_names(dataset, ())
        yield from data.check_list(dataset)
        return
    path = dataset.ann_file
    try:
        content = read(path, config.get('backend_args'))
    except (OSError, ValueError) as error:
        yield Finding('annotation', path, f'cannot be read: {error}', True)
        return
    categories = content.get('categories') if isinstance(content, dict) else ()
    yield from classes.check_names(dataset, categories if isinstance(categories, list) else ())
    masks = any(step.get('with_mask') for step in config.get('pipeline') or ())
    min_size = (config.get('filter_cfg') or {}).get('min_size', 0)
    for finding in check_coco(content, dataset.metainfo.get('classes'), masks, trained, min_size):
        yield finding._replace(where=f'{path}: {finding.where}')


def audit(cfg: Config, splits: Tuple[str, ...], images: Counter) -> Iterator[Tuple[str, Finding]]:
    """Read all images, maps and annotations of a config's data sets; yield split and finding.

    A split with the files of an earlier one is not read again, and is a finding if that one is
    ``'train'``. The images of a split that could not be trained on are not read. ``images`` gets
    the number of images by split.

    Raises:
        FileNotFoundError, DataError: a data set does not exist or cannot be built.
    """
    splits = tuple(split for split in splits if cfg.get(f'{split}_dataloader'))
    if not splits:
        raise DataError('the config has no data set for these splits')
    for split in splits:
        data.check_data(cfg, f'{split}_dataloader')
    broken: Set[str] = set()
    for split, finding in config_findings(cfg, splits, _built(cfg)):
        broken.update([split] if finding.fatal else [])
        yield split, finding
    read: Dict[str, List[dict]] = {}
    for split in splits:
        configs = [*dataset_configs(cfg[f'{split}_dataloader'])]
        chosen = [{k: v for k, v in each.items() if k not in SAME_FILES} for each in configs]
        earlier = next((name for name, files in read.items() if files == chosen), None)
        read[split] = chosen
        if earlier == 'train':
            what = 'reads the images that are trained: its scores say nothing of other images'
            yield split, Finding('duplicate', f'{split}_dataloader', what)
        if earlier is None and split not in broken:
            with known_messages_hidden():
                built = [data.built_dataset(config) for config in configs]
                for config, dataset in zip(configs, built):
                    if split == 'train' and config.get('filter_cfg'):
                        every = len(data.built_dataset({**config, 'filter_cfg': None}))
                        images[f'{split}, left out by filter_cfg'] += every - len(dataset)
                images += Counter()  # without zeros
            parts = [part for dataset in built for part in base_datasets(dataset)]
            images[split] += sum(map(len, parts))
            found = sample_findings(parts, data.labels_of(cfg, split), split == 'train')
            yield from ((split, finding) for finding in chain(data.unread_files(parts), found))


def _built(cfg: Config) -> Optional[nn.Module]:
    """Return the model, or None if it needs the process group of a distributed run."""
    if 'model' not in cfg:
        return None
    try:
        return build_model(cfg)
    except KeyError as error:
        parts = [(f'model.{place}', node) for place, node in dicts(cfg.model) if place]
        parts = [('model', cfg.model), *(part for part in parts if key_of(part[0]) in PARTS)]
        untyped = [place for place, node in parts if 'type' not in node]
        if untyped and 'must contain the key "type"' in str(error):
            raise ValueError(f'{untyped[0]} of the config has no type') from error
        raise
    except ValueError as error:
        if 'process group' in str(error):
            return None
        raise
