"""Checks of a config's data sets before a run starts."""

import io
import json
import os.path as osp
from pathlib import Path
from typing import Any, Iterator, List, NamedTuple, Optional, Tuple

import numpy as np
from mmengine import fileio
from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS

from ...checkpoints.safe_unpickle import PlainUnpickler
from ...datasets.audit.coco import check_coco
from ...datasets.file_backends import first_files, path_exists
from ...datasets.shards import DamagedSample, ShardDataset
from ...utils import dicts, key_of, nodes, outside_reason
from ...utils.redact import RedactedError

# Instructions for a missing data set, by the data_root of its configs.
DATA_HINTS = {
    'data/shapes': 'make it with: mmlinattn shapes {root}',
    'data/moving_shapes': 'make it with: python tools/dataset_converters/moving_shapes.py {root}',
    'data/kinetics400': 'see docs/datasets.md#kinetics-400-and-something-something-v2',
    'data/sthv2': 'see docs/datasets.md#kinetics-400-and-something-something-v2',
    'data/celebahq': 'see docs/datasets.md#celeba-hq',
    'data/camvid': 'see docs/datasets.md#camvid for the download and the expected folders',
    'data/bccd': 'see docs/datasets.md#bccd for the download and the expected folders',
    'data/bccd_cells': 'cut it out of BCCD, see docs/datasets.md#bccd',
    'data/coco': 'see docs/datasets.md#coco',
    'data/cityscapes': 'see docs/datasets.md#cityscapes',
    'data/ade/ADEChallengeData2016': 'see docs/datasets.md#ade20k',
    'data/imagenet': 'see docs/datasets.md#imagenet',
    'data/imagenet-v2': 'see docs/datasets.md#imagenet-v2',
    'data/cifar-100-binary': 'see docs/datasets.md#cifar-100',
}

PICKLES = ('.pkl', '.pickle')
ARRAYS = ('.npy', '.npz')
FILES = ('img_path', 'video_path', 'seg_map_path')


class Labels(NamedTuple):
    """Labels that a model is trained with.

    Attributes:
        number: number of labels, 0 to ``number - 1``; None if the model config does not define it.
        ignored: label of pixels that are not trained.
        of_pixels: True for labels of a segmentation map, False for those of objects or images.
    """

    number: Optional[int] = None
    ignored: int = 255
    of_pixels: bool = False


class DataError(RedactedError, ValueError):
    """Error of an unusable data set; the message names the folder or file and the reason.

    Passwords and query strings of addresses are removed from the message.
    """


def check_data(cfg: Config, *loaders: str) -> None:
    """Check that the folders and files of the data sets exist and contain no code.

    Args:
        cfg: config with the data loaders.
        loaders: names of those that will be used, such as ``'train_dataloader'``.

    Raises:
        FileNotFoundError: a data folder or annotation file does not exist.
        DataError: a pickle or numpy file would run code when read.
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
                if path and not path_exists(path, backend_args, folder):
                    raise FileNotFoundError(
                        f'{loader}: {path!r} does not exist (data_root={root!r}); '
                        + _data_hint(root or path)
                    )
            for place, text in nodes(dataset):
                if not isinstance(text, str):
                    continue
                key = key_of(place)
                if key == 'decode_backend' and text == 'pickle':
                    raise DataError(f"{loader}: decode_backend='pickle' would run code of images")
                _check_safe(osp.join(root, text), key == 'hierarchy_file', backend_args)


def _check_safe(path: str, is_array: bool, backend_args: Optional[dict]) -> None:
    """Raise DataError if reading a pickle or numpy file would run code.

    The frameworks read annotations and proposals, some of them with code execution. The hierarchy
    file of OpenImages is an array under any name.
    """
    if not (is_array or path.endswith(PICKLES + ARRAYS)) or not path_exists(path, backend_args):
        return
    try:
        file = io.BytesIO(fileio.get(path, backend_args))
        if path.endswith(PICKLES):
            PlainUnpickler(file).load()
        else:
            arrays = np.load(file, allow_pickle=False)
            for name in getattr(arrays, 'files', ()):
                arrays[name]
    except Exception as error:  # corrupt files raise any type of error
        raise DataError(f'{path} is refused: {error}') from error


def empty_reason(loader: dict) -> str:
    """Return the reason why the data set of a data loader config has no usable image.

    It has the folder, the suffix and the files found, or annotation file and classes.
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


def unusable_reason(loader: dict) -> str:
    """Return the first problem in the annotations of a data loader that fails to build, or ''."""
    for cfg in dataset_configs(loader):
        path = annotation_path(cfg)
        backend_args = cfg.get('backend_args')
        if not path.endswith('.json') or not path_exists(path, backend_args):
            continue
        try:
            content = json.loads(fileio.get(path, backend_args))
        except ValueError as error:
            return f'{path} is no JSON: {error}'
        if not isinstance(content, dict) or 'images' in content or 'annotations' in content:
            for _, where, what in check_coco(content):
                return f'{path}: {where}: {what}; mmlinattn check-data finds all'
    return ''


def check_objects(dataset: Any) -> None:
    """Raise DataError if all objects of a training set for detection are crowds.

    Args:
        dataset: loaded data set; one without objects, or in ``test_mode``, passes.
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
    """Raise DataError if a COCO metric has annotation ids that its evaluation does not support.

    Args:
        evaluator: built evaluator; metrics of other data sets pass.
    """
    for metric in getattr(evaluator, 'metrics', ()):
        for number in getattr(getattr(metric, '_coco_api', None), 'anns', ()):
            if isinstance(number, str):
                name = type(metric).__name__
                raise DataError(f'{name}: annotation {number!r} of its file has no number as id')


def labels_of(model: dict) -> Labels:
    """Return the labels that the segmentor, classifier or detector of a config is trained with."""
    heads: List[Any] = [model.get(name) for name in ('decode_head', 'head', 'bbox_head')]
    heads.append((model.get('roi_head') or {}).get('bbox_head'))
    for head in heads:
        number = head.get('num_classes') if isinstance(head, dict) else None
        if type(number) is int:
            of_pixels = head is heads[0]
            # A decode head with one class separates labels 0 and 1 by a sigmoid.
            number = max(number, 2) if of_pixels else number
            return Labels(number, head.get('ignore_index', Labels().ignored), of_pixels)
    return Labels()


def folders_of(dataset: Any) -> Tuple[str, ...]:
    """Return the configured folders of a data set: its root and those of its prefix.

    A data set of shards has none, since its images are inside the shards.
    """
    if isinstance(dataset, ShardDataset):
        return ()
    prefixes = getattr(dataset, 'data_prefix', None) or {}
    prefixes = [prefixes] if isinstance(prefixes, str) else [*prefixes.values()]
    folders = [getattr(dataset, 'data_root', None), *prefixes]
    return tuple(dict.fromkeys(folder for folder in folders if folder and type(folder) is str))


def check_images(dataset: Any) -> None:
    """Raise DataError if files of the first or the last sample of a data set cannot be read.

    Args:
        dataset: loaded data set; one without file records (``get_data_info``) passes.
    """
    if not hasattr(dataset, 'get_data_info') or not len(dataset):
        return
    backend_args = getattr(dataset, 'backend_args', None)
    folders = folders_of(dataset)
    for index in {0, len(dataset) - 1}:
        try:
            info = dataset.get_data_info(index)
        except DamagedSample:  # reported, or skipped, when it is loaded
            continue
        # Test sets may have no segmentation maps.
        keys = FILES[:2] if getattr(dataset, 'test_mode', False) else FILES
        for key in keys:
            path = info.get(key) if isinstance(info, dict) else None
            if not isinstance(path, str):
                continue
            what = outside_reason(path, folders)
            if not what and not path_exists(path, backend_args):
                folder = osp.dirname(path)
                what = f'does not exist; {folder} has {_content(folder, backend_args)}'
            if what:
                name = type(dataset).__name__
                raise DataError(f'{path} ({key} of sample {index} of {name}) {what}')


def _content(folder: str, backend_args: Optional[dict]) -> str:
    """Return the first files in a folder and its subfolders, for messages."""
    if not path_exists(folder, backend_args):
        return 'not been made'
    names = first_files(folder, 4, backend_args)
    return ', '.join(names[:3]) + (', ...' if names[3:] else '') if names else 'no file'


def single_dataset(cfg: Config, loader: str) -> BaseDataset:
    """Return the only data set of a data loader config, checked and without its pipeline.

    Raises:
        DataError: there is none or more than one, or it cannot be built.
        FileNotFoundError: see :func:`check_data`.
    """
    configs = [*dataset_configs(cfg.get(loader) or {})]
    if len(configs) != 1:
        raise DataError(f'{loader} has {len(configs)} data sets, one is needed')
    return loaded_dataset(cfg, loader, dict(configs[0], pipeline=[]))


def loaded_dataset(cfg: Config, loader: str, config: Optional[dict] = None) -> Any:
    """Return the data set of a data loader config, checked.

    Args:
        cfg: the config.
        loader: name of the data loader.
        config: of one data set inside it, or None for all in their wrappers.

    Raises:
        DataError: it cannot be built.
        FileNotFoundError: see :func:`check_data`.
    """
    check_data(cfg, loader)
    config = cfg[loader]['dataset'] if config is None else config
    try:
        return DATASETS.build(config)
    except Exception as error:
        why = unusable_reason(cfg[loader]) or f'{config.get("type")}: {error}'
        raise DataError(f'{loader}: {why}') from error


def dataset_configs(node) -> Iterator[dict]:
    """Yield every data set config inside a data loader config, including those in wrappers."""
    return (found for _, found in dicts(node) if 'data_root' in found or 'ann_file' in found)


def annotation_path(config: dict) -> str:
    """Return the path of the annotation file of a data set config; its root if it names no file."""
    return osp.join(config.get('data_root') or '', config.get('ann_file') or '')


def lazy_dataset(config: dict) -> Any:
    """Build the data set of a config without reading its annotations.

    Raises:
        DataError: its class cannot be built from this config.
    """
    name = getattr(config.get('type'), '__name__', config.get('type'))
    try:
        return DATASETS.build(dict(config, lazy_init=True))
    except Exception as error:
        text = str(error) or type(error).__name__
        if 'is not a subset of classes' in text:  # MMSegmentation, whose message lists all names
            classes = (config.get('metainfo') or {}).get('classes')
            text = (
                f'its maps have the labels of {name}, which lacks some of the classes {classes}: '
                "type='BaseSegDataset' reads maps of other classes"
            )
        raise DataError(f'{name} cannot be built: {text}') from error


def _data_hint(root: str) -> str:
    hints = {Path(path).name: hint for path, hint in DATA_HINTS.items()}
    # Match outer folders first: data/shapes/coco is Shapes, not COCO.
    for base in (*reversed(Path(root).parents), Path(root)):
        if base.name in hints:
            return hints[base.name].format(root=base)
    for i in range(1, len(root)):
        folder, file = root[:i], root[i:]
        if osp.isdir(folder) and file[0] != '/' and osp.exists(f'{folder}/{file}'):
            return f'end data_root with a slash: {folder + "/"!r}'
    return (
        'set data_root of every data loader and ann_file of every evaluator (docs/own_data.md); '
        'public sets: docs/datasets.md'
    )
