"""Data sets of a config: their folders and files, and the labels of a model."""

import io
import os
import os.path as osp
import re
from itertools import islice
from pathlib import Path
from typing import Any, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import yaml
from mmengine import fileio
from mmengine.config import Config
from mmengine.registry import DATASETS

from ...checkpoints.safe_unpickle import PlainUnpickler
from ...datasets.audit.coco import Finding
from ...datasets.audit.images import IMAGES
from ...utils import dicts, nodes, type_name
from ...utils.redact import RedactedError
from ...utils.suggest import shorten

# Instructions for a missing data set, by the data_root of its configs.
DATA_HINTS = {
    'data/shapes': 'make it with: mmlinattn shapes {root}',
    'data/moving_shapes': 'make it with: python -m mmlinattn.projects.video.moving_shapes {root}',
    'data/kinetics400': 'see configs/timesformer/README.md#videos-and-lists',
    'data/sthv2': 'see configs/timesformer/README.md#videos-and-lists',
    'data/celebahq': 'see configs/vqgan/README.md#data',
    'data/camvid': 'see docs/datasets.md#camvid for the download and the expected folders',
    'data/bccd': 'see docs/datasets.md#bccd for the download and the expected folders',
    'data/bccd_cells': 'cut it out of BCCD, see docs/datasets.md#bccd',
    'data/nuclei': 'see configs/nuclei/README.md#the-whole-set',
    'data/coco': 'see docs/datasets.md#public-sets',
    'data/cityscapes': 'see docs/datasets.md#public-sets',
    'data/ade/ADEChallengeData2016': 'see docs/datasets.md#public-sets',
    'data/imagenet': 'see docs/datasets.md#public-sets',
    'data/imagenet-v2': 'see docs/datasets.md#imagenet-v2',
    'data/cifar-100-binary': 'see configs/ripple/README.md#data',
}
# Data sets and their options whose files are pickles of any suffix.
PICKLED = {
    ('OpenImagesDataset', 'meta_file'), ('RefCOCO', 'split_file'), ('RefCocoDataset', 'split_file'),
}  # fmt: skip
PICKLE_STARTS = (b'\x80\2', b'\x80\3', b'\x80\4', b'\x80\5')  # of protocol 2 and newer
# Parts of the names of MMPretrain's metrics that read the label of an image.
LABEL_METRICS = (
    'Accuracy', 'AveragePrecision', 'ConfusionMatrix', 'MultiLabelMetric', 'SingleLabelMetric',
)  # fmt: skip


CUSTOM = 'mmpretrain.datasets.custom'  # module of CustomDataset: reads folders or a list


class Labels(NamedTuple):
    """Labels that a model is trained with."""

    number: Optional[int] = None  # labels are 0 to number - 1; None if the config has no number
    ignored: int = 255  # label of pixels that are not trained
    of_pixels: bool = False  # labels of a segmentation map, not of objects or images
    required: bool = False  # each image must have a label: MMPretrain's heads and metrics read it
    changed: bool = False  # a transform of the user's may change them after they are loaded


class DataError(RedactedError, ValueError):
    """Error of an unusable data set; the message names the folder or file and the reason."""


def check_data(cfg: Config, *loaders: str) -> None:
    """Raise an error if folders or files of the data of loaders do not exist or contain code."""
    for loader in loaders:
        for dataset in dataset_configs(cfg.get(loader) or {}):
            root = dataset.get('data_root') or ''
            prefixes = dataset.get('data_prefix') or {}
            prefixes = [prefixes] if isinstance(prefixes, str) else prefixes.values()
            for part in ('', dataset.get('ann_file') or '', *prefixes):
                path = osp.join(root, part) if isinstance(part, str) else root
                if path and '://' not in path and not osp.exists(path):
                    raise FileNotFoundError(
                        f'{loader}: {path!r} does not exist (data_root={root!r}); '
                        + _data_hint(root or path, path)
                    )
            check_plain(dataset)


def check_plain(dataset: dict) -> None:
    """Raise DataError if a file of a data set config would run code when read."""
    for place, text in nodes(dataset):
        path = osp.join(dataset.get('data_root') or '', text) if isinstance(text, str) else ''
        if not osp.isfile(path):
            continue
        try:
            with open(path, 'rb') as file:
                start = file.read(2)
            is_pickled = start in PICKLE_STARTS or (type_name(dataset), place) in PICKLED
            if is_pickled or path.endswith(('.pkl', '.pickle')):
                PlainUnpickler(io.BytesIO(Path(path).read_bytes())).load()
            elif path.endswith(('.yml', '.yaml')):
                loader = getattr(yaml, 'CSafeLoader', yaml.SafeLoader)
                yaml.load(Path(path).read_bytes(), Loader=loader)
            elif path.endswith(('.npy', '.npz')):
                arrays = np.load(path, allow_pickle=False)
                [arrays[name] for name in getattr(arrays, 'files', ())]
        except Exception as error:  # corrupt files raise any type of error
            raise DataError(f'{path} is refused: {error}') from error


def _data_hint(root: str, path: str) -> str:
    last = next((base for base in Path(path).parents if base.is_dir()), Path(root))
    names = sorted(os.listdir(last)) if osp.isdir(root) else []
    there = f'{last} has {shorten(names)}' if names else ''
    hints = {Path(name).name: hint for name, hint in DATA_HINTS.items()}
    # Match outer folders first: data/shapes/coco is Shapes, not COCO.
    for base in (*reversed(Path(root).parents), Path(root)):
        if base.name in hints:
            return '; '.join(filter(None, [there, hints[base.name].format(root=base)]))
    for i in range(1, len(root)):
        folder, file = root[:i], root[i:]
        is_split = '/' not in (folder[-1], file[0])
        if is_split and osp.isdir(folder) and osp.exists(f'{folder}/{file}'):
            return f'end data_root with a slash: {folder + "/"!r}'
    return f'{there}; '.removeprefix('; ') + (
        'set data_root of every data loader and ann_file of every evaluator (docs/own_data.md); '
        'public sets: docs/datasets.md'
    )


def dataset_reason(error: Exception, loader: dict) -> Optional[str]:
    """Return why the data set of a data loader config cannot be built, for two known errors."""
    if 'need at least one array to concatenate' in str(error):  # MMEngine, if there is no image
        return _empty_reason(loader)
    found = re.match(r'The number of subfolders \((\d+)\).*classes \((\d+)\)', str(error))
    return found and (
        f'there are {found[1]} folders of classes, but metainfo.classes has {found[2]} names: set '
        'metainfo=dict(classes=(...)) in the data sets of all data loaders, the names of the '
        f'folders in alphabetical order, and model.head.num_classes={found[1]}'
    )


def _empty_reason(loader: dict) -> str:
    found = []
    for cfg in dataset_configs(loader):
        dataset = DATASETS.build(dict(cfg, lazy_init=True))
        folder = (getattr(dataset, 'data_prefix', None) or {}).get('img_path')
        suffix = getattr(dataset, 'img_suffix', None)
        if folder is not None and suffix is not None and not cfg.get('ann_file'):
            found.append(
                f'{folder} has no image whose name ends in {suffix!r} (img_suffix of '
                f'{type(dataset).__name__}); it has {first_files(folder)}'
            )
        else:
            found.append(
                f'{getattr(dataset, "ann_file", "")} has no image with an object of the classes '
                f'{dataset.metainfo.get("classes")}'
            )
    return '; '.join(found) or 'the data set has no image'


def first_files(folder: str) -> str:
    """Return the first files in a folder and its subfolders, for messages."""
    if not osp.isdir(folder):
        return 'no file: the folder does not exist'
    paths = (osp.join(base, name) for base, _, files in os.walk(folder) for name in sorted(files))
    names = [osp.relpath(path, folder) for path in islice(paths, 4)]
    return ', '.join(names[:3]) + (', ...' if names[3:] else '') if names else 'no file'


def reader_of(dataset: Any, method: str = 'load_data_list') -> str:
    """Return the module of the method by which a data set reads its records."""
    return getattr(getattr(type(dataset), method, None), '__module__', '')


def check_list(dataset: Any) -> Iterator[Finding]:
    """Find the first line that MMPretrain's CustomDataset cannot read in its list of images."""
    if reader_of(dataset) != CUSTOM or not dataset.ann_file:
        return
    path, label = dataset.ann_file, ' label' if dataset.with_label else ''
    try:
        lines = fileio.list_from_file(path) or ['']
    except ValueError as error:
        yield Finding('annotation', path, f'cannot be read: {error}: save it as UTF-8', True)
        return
    line_of = re.compile(r'(?!\ufeff).+' + (r' [+-]?\d+' if label else ''))
    for number, line in enumerate(lines, 1):
        if not line_of.fullmatch(line.strip()):
            what = f'{line[:80]!r} is not "image{label}": write a name, a space and the number of '
            what += 'a class in every line (with_label=False: a name), without a byte-order mark'
            yield Finding('annotation', f'{path}, line {number}', what, True)
            return


def unread_files(datasets: Sequence[Any]) -> Iterator[Finding]:
    """Find the folders with images or maps that data sets without lists of files do not read."""
    kinds = {(dataset.data_prefix.get(name), ends, what) for dataset in datasets
             if hasattr(dataset, 'img_suffix') and isinstance(dataset.data_prefix, dict)
             for name, ends, what in (
                 ('img_path', IMAGES, f'names of images end in {dataset.img_suffix!r}'),
                 ('seg_map_path', dataset.seg_map_suffix.lower(), 'no image has this name'),
             )}  # fmt: skip
    for dataset in datasets:
        if hasattr(dataset, 'extensions') and isinstance(dataset.data_prefix, dict):
            what = f'add its suffix to extensions={tuple(sorted(dataset.extensions))} of the data '
            what += 'set' + ', or move it into the folder of its class' * dataset.with_label
            kinds.add((dataset.data_prefix.get('img_path'), IMAGES, what))
    if any(each.ann_file or each._indices is not None for each in datasets):
        return
    read = {path for each in datasets for i in range(len(each)) if kinds
            for path in each.get_data_info(i).values() if isinstance(path, str)}  # fmt: skip
    for folder, ends, what in sorted(kinds, key=str):
        for base, _, files in os.walk(folder or ''):
            paths = [osp.join(base, file) for file in sorted(files)
                     if file.lower().endswith(ends) and not file.startswith('.')]  # fmt: skip
            unread = [path for path in paths if path not in read]
            if unread:
                text = f'is one of {len(unread)} files that are not read: {what}'
                yield Finding('unread', unread[0], text)


def labels_of(cfg: Config, split: str = 'train') -> Labels:
    """Return the labels that the segmentor, classifier or detector of a config is trained with."""
    metrics = [type_name(node) for _, node in dicts(cfg.get(f'{split}_evaluator') or {})]
    is_read = split == 'train' or any(name in each for each in metrics for name in LABEL_METRICS)
    if split != 'train' and any('Retrieval' in each for each in metrics):
        return Labels()  # they may be places in a gallery
    model = cfg.get('model') or {}
    heads: List[Any] = [model.get(name) for name in ('decode_head', 'head', 'bbox_head')]
    heads.append((model.get('roi_head') or {}).get('bbox_head'))
    for head in heads:
        number = head.get('num_classes') if isinstance(head, dict) else None
        if type(number) is int:
            of_pixels = head is heads[0]
            # A decode head with one class separates labels 0 and 1 by a sigmoid.
            number = max(number, 2) if of_pixels else number
            # Classes of a user's own, such as semi-supervised ones, may need no label.
            known = type_name(model) in ('ImageClassifier', 'VideoRecognizer')
            required = is_read and known and 'ClsHead' in type_name(head)
            return Labels(number, head.get('ignore_index', Labels().ignored), of_pixels, required)
    return Labels()


def folders_of(dataset: Any) -> Tuple[str, ...]:
    """Return the configured folders of a data set: its root and those of its prefix."""
    prefixes = getattr(dataset, 'data_prefix', None) or {}
    prefixes = [prefixes] if isinstance(prefixes, str) else [*prefixes.values()]
    folders = [getattr(dataset, 'data_root', None), *prefixes]
    return tuple(dict.fromkeys(folder for folder in folders if folder and type(folder) is str))


def dataset_configs(node) -> Iterator[dict]:
    """Yield every data set config inside a data loader config, including those in wrappers."""
    return (found for _, found in dicts(node) if 'data_root' in found or 'ann_file' in found)


def annotation_path(config: dict) -> str:
    """Return the path of the annotation file of a data set config; its root if it names no file."""
    return osp.join(config.get('data_root') or '', config.get('ann_file') or '')


def lazy_dataset(config: dict) -> Any:
    """Build a data set without reading its annotations; None if it is not one of MMEngine."""
    try:
        return built_dataset(dict(config, lazy_init=True))
    except DataError as error:
        if not isinstance(error.__cause__, TypeError):
            raise
    return None


def built_dataset(config: dict) -> Any:
    """Build the data set of a config, or raise DataError."""
    name = getattr(config.get('type'), '__name__', config.get('type'))
    try:
        return DATASETS.build(config)
    except Exception as error:
        text = dataset_reason(error, dict(dataset=config)) or str(error) or type(error).__name__
        if 'is not a subset of classes' in text:  # MMSegmentation, whose message lists all names
            classes = (config.get('metainfo') or {}).get('classes')
            text = (
                f'its maps have the labels of {name}, which lacks some of the classes {classes}: '
                "type='BaseSegDataset' reads maps of other classes"
            )
        raise DataError(f'{name} cannot be built: {text}') from error
