"""Is the data of a config there? Asked before any work."""

import io
import json
import os.path as osp
from pathlib import Path
from typing import Any, Iterator, NamedTuple, Optional, Tuple

import numpy as np
from mmengine import fileio
from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS

from ..checkpoints.harmless import PlainUnpickler
from ..datasets.coco import check_coco
from ..datasets.shards import DamagedSample, ShardDataset
from ..datasets.stores import first_files, is_there
from ..files import redacted, why_outside

# How to get a data set whose folder is missing, by the name of the folder.
DATA_HINTS = {
    'shapes': 'make it with: python -m mmlinattn.datasets.shapes {root}',
    'camvid': 'see docs/datasets.md#camvid for the download and the expected folders',
    'bccd': 'see docs/datasets.md#bccd for the download and the expected folders',
    'coco': 'see docs/datasets.md#coco',
    'cityscapes': 'see docs/datasets.md#cityscapes',
    'ADEChallengeData2016': 'see docs/datasets.md#ade20k',
    'imagenet': 'see docs/datasets.md#imagenet',
    'cifar-100-binary': 'see docs/datasets.md#cifar-100',
}

PICKLES = ('.pkl', '.pickle')
ARRAYS = ('.npy', '.npz')
FILES = ('img_path', 'seg_map_path')


class Labels(NamedTuple):
    """Labels that a model is trained with.

    Attributes:
        number: they are 0 to ``number - 1``; None if the config of the model does not tell.
        ignored: label of pixels that are not trained.
        of_pixels: they are those of a segmentation map, not of objects or images.
    """

    number: Optional[int] = None
    ignored: int = 255
    of_pixels: bool = False


class DataError(ValueError):
    """A data set that cannot be used; the message names the folder or file and why.

    Passwords and queries of addresses are left out of it.
    """

    def __init__(self, message: object = '') -> None:
        super().__init__(redacted(str(message)))


def check_data(cfg: Config, *loaders: str) -> None:
    """Are the folders and files there that the data sets name, and free of code?

    Args:
        cfg: the config.
        loaders: names of the data loaders that will be used, such as ``'train_dataloader'``.

    Raises:
        FileNotFoundError: a data folder or annotation file that is not there.
        DataError: a pickle or numpy file that would run code when read.
    """
    for loader in loaders:
        for dataset in dataset_configs(cfg.get(loader) or {}):
            root = dataset.get('data_root') or ''
            ann_file = dataset.get('ann_file') or ''
            prefixes = dataset.get('data_prefix') or {}
            prefixes = [prefixes] if isinstance(prefixes, str) else prefixes.values()
            backend_args = dataset.get('backend_args')
            for part in ('', ann_file, *prefixes):
                path = osp.join(root, part) if isinstance(part, str) else root
                folder = not ann_file or part != ann_file
                if path and not is_there(path, backend_args, folder):
                    raise FileNotFoundError(
                        f'{loader}: {path!r} does not exist (data_root={root!r}); '
                        + _data_hint(root or path)
                    )
            for key, text in _strings(dataset):
                if key == 'decode_backend' and text == 'pickle':
                    raise DataError(f"{loader}: decode_backend='pickle' would run code of images")
                _check_harmless(osp.join(root, text), key == 'hierarchy_file', backend_args)


def _strings(node: Any, key: Any = None) -> Iterator[Tuple[Any, str]]:
    """All strings of a config, with the key that they are under."""
    if isinstance(node, str):
        yield key, node
    elif isinstance(node, dict):
        for name, value in node.items():
            yield from _strings(value, name)
    elif isinstance(node, (list, tuple)):
        for value in node:
            yield from _strings(value, key)


def _check_harmless(path: str, is_array: bool, backend_args: Optional[dict]) -> None:
    """Annotations and proposals are read by the frameworks, some of them with code execution.

    OpenImages' hierarchy is an array by any name.
    """
    if not (is_array or path.endswith(PICKLES + ARRAYS)) or not is_there(path, backend_args):
        return
    try:
        file = io.BytesIO(fileio.get(path, backend_args))
        if path.endswith(PICKLES):
            PlainUnpickler(file).load()
        else:
            arrays = np.load(file, allow_pickle=False)
            for name in getattr(arrays, 'files', ()):
                arrays[name]
    except Exception as error:  # damaged files raise whatever they like
        raise DataError(f'{path} is refused: {error}') from error


def why_empty(loader: dict) -> str:
    """Why the data set of a data loader's config has no image that can be used.

    Args:
        loader: config of a data loader whose data set came out empty.

    Returns:
        a message with folder, suffix and what is there, or annotation file and classes.
    """
    found = []
    for cfg in dataset_configs(loader):
        dataset = DATASETS.build(dict(cfg, lazy_init=True))
        folder = (getattr(dataset, 'data_prefix', None) or {}).get('img_path')
        suffix = getattr(dataset, 'img_suffix', None)
        ann_file = getattr(dataset, 'ann_file', '')
        if folder is not None and suffix is not None and not cfg.get('ann_file'):
            found.append(
                f'{folder} has no image whose name ends in {suffix!r} (img_suffix of '
                f'{type(dataset).__name__}); it has {_content(folder, cfg.get("backend_args"))}'
            )
        else:
            classes = dataset.metainfo.get('classes')
            found.append(
                f'{ann_file} has no image with an object of the classes {classes}: '
                'metainfo=dict(classes=(...)) must name those of the file'
            )
    return '; '.join(found) or 'the data set has no image'


def why_unusable(loader: dict) -> str:
    """The first thing that is wrong with the annotations of a data loader's config, or ''.

    Args:
        loader: config of a data loader whose data set could not be built.
    """
    for cfg in dataset_configs(loader):
        path = osp.join(cfg.get('data_root') or '', cfg.get('ann_file') or '')
        backend_args = cfg.get('backend_args')
        if not path.endswith('.json') or not is_there(path, backend_args):
            continue
        try:
            content = json.loads(fileio.get(path, backend_args))
        except ValueError as error:
            return f'{path} is no JSON: {error}'
        if not isinstance(content, dict) or 'images' in content or 'annotations' in content:
            for _, where, what in check_coco(content):
                return f'{path}: {where}: {what}; tools/analysis_tools/check_data.py finds all'
    return ''


def check_categories(dataset: Any) -> None:
    """Raises DataError unless a COCO data set has just one category for each of its classes.

    MMDetection counts the categories that it finds: one that is missing or there twice gives those
    behind it the labels of other classes.

    Args:
        dataset: built and loaded; one without categories passes.
    """
    ids, classes = getattr(dataset, 'cat_ids', None), dataset.metainfo.get('classes')
    if ids is None or not classes or len(ids) == len({*ids}) == len(classes):
        return
    raise DataError(
        f'{getattr(dataset, "ann_file", "")} has the categories {[*ids]} for the {len(classes)} '
        f'classes {classes}: it must have each once'
    )


def check_objects(dataset: Any) -> None:
    """Raise DataError if all objects of a training set for detection are crowds.

    Args:
        dataset: built and loaded; one without objects, or in ``test_mode``, passes.
    """
    if getattr(dataset, 'cat_ids', None) is None or getattr(dataset, 'test_mode', False):
        return
    count = 0
    for i in range(len(dataset)):
        for instance in dataset.get_data_info(i).get('instances') or ():
            if not instance.get('ignore_flag'):
                return
            count += 1
    if count:
        raise DataError(
            f'{getattr(dataset, "ann_file", "")} has {count} objects, all of them crowds '
            '(iscrowd=1), which are not trained: set iscrowd to 0 where it is a single object'
        )


def check_metrics(evaluator: Any) -> None:
    """Raise DataError if a COCO metric has annotations whose ids its evaluation cannot take.

    Args:
        evaluator: built; metrics of other data sets pass.
    """
    for metric in getattr(evaluator, 'metrics', ()):
        for number in getattr(getattr(metric, '_coco_api', None), 'anns', ()):
            if isinstance(number, str):
                name = type(metric).__name__
                raise DataError(f'{name}: annotation {number!r} of its file has no number as id')


def labels_of(model: dict) -> Labels:
    """Return the labels that a segmentor, classifier or detector is trained with.

    Args:
        model: its config.
    """
    heads = [model.get(name) for name in ('decode_head', 'head', 'bbox_head')]
    heads.append((model.get('roi_head') or {}).get('bbox_head'))
    for head in heads:
        number = head.get('num_classes') if isinstance(head, dict) else None
        if type(number) is int:
            of_pixels = head is heads[0]
            # A decode head with one class tells labels 0 and 1 apart by a sigmoid.
            number = max(number, 2) if of_pixels else number
            return Labels(number, head.get('ignore_index', Labels().ignored), of_pixels)
    return Labels()


def folders_of(dataset: Any) -> Tuple[str, ...]:
    """Return the folders that a data set is told to read from: its root, those of its prefix.

    A set of shards has none: its images are inside of its shards.
    """
    if isinstance(dataset, ShardDataset):
        return ()
    prefixes = getattr(dataset, 'data_prefix', None) or {}
    prefixes = [prefixes] if isinstance(prefixes, str) else [*prefixes.values()]
    folders = [getattr(dataset, 'data_root', None), *prefixes]
    return tuple(dict.fromkeys(folder for folder in folders if folder and type(folder) is str))


def check_images(dataset: Any) -> None:
    """Raises DataError if files of the first or the last sample of a data set cannot be read.

    Args:
        dataset: built and loaded; one without records of files (``get_data_info``) passes.
    """
    if not hasattr(dataset, 'get_data_info') or not len(dataset):
        return
    backend_args = getattr(dataset, 'backend_args', None)
    folders = folders_of(dataset)
    for index in {0, len(dataset) - 1}:
        try:
            info = dataset.get_data_info(index)
        except DamagedSample:  # told, or passed over, where it is loaded
            continue
        # Test sets may come without maps.
        keys = ('img_path',) if getattr(dataset, 'test_mode', False) else FILES
        for key in keys:
            path = info.get(key) if isinstance(info, dict) else None
            if not isinstance(path, str):
                continue
            what = why_outside(path, folders)
            if not what and not is_there(path, backend_args):
                folder = osp.dirname(path)
                what = f'does not exist; {folder} has {_content(folder, backend_args)}'
            if what:
                name = type(dataset).__name__
                raise DataError(f'{path} ({key} of sample {index} of {name}) {what}')


def _content(folder: str, backend_args: Optional[dict], limit: int = 3) -> str:
    """The first files of a folder and of those below, for messages."""
    if not is_there(folder, backend_args):
        return 'not been made'
    names = first_files(folder, limit + 1, backend_args)
    return ', '.join(names[:limit]) + (', ...' if names[limit:] else '') if names else 'no file'


def single_dataset(cfg: Config, loader: str) -> BaseDataset:
    """The one data set of a data loader's config, checked and without its pipeline.

    Raises:
        DataError: none, several, or one that cannot be built.
        FileNotFoundError: see :func:`check_data`.
    """
    configs = [*dataset_configs(cfg.get(loader) or {})]
    if len(configs) != 1:
        raise DataError(f'{loader} has {len(configs)} data sets, one is needed')
    check_data(cfg, loader)
    try:
        return DATASETS.build(dict(configs[0], pipeline=[]))
    except Exception as error:
        why = why_unusable(cfg[loader]) or f'{configs[0].get("type")}: {error}'
        raise DataError(f'{loader}: {why}') from error


def dataset_configs(node) -> Iterator[dict]:
    """Every data set config inside a data loader config, wrappers included."""
    if isinstance(node, dict):
        if 'data_root' in node or 'ann_file' in node:
            yield node
        for value in node.values():
            yield from dataset_configs(value)
    elif isinstance(node, (list, tuple)):
        for value in node:
            yield from dataset_configs(value)


def _data_hint(root: str) -> str:
    # From the outside in: data/shapes/coco is Shapes, not COCO.
    for base in (*reversed(Path(root).parents), Path(root)):
        if base.name in DATA_HINTS:
            return DATA_HINTS[base.name].format(root=base)
    return 'set another folder with --cfg-options, see docs/datasets.md'
