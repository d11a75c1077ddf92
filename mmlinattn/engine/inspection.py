"""Is every file of the data of a config what its annotations say? Before days of training.

What :func:`mmlinattn.engine.data_checks.check_data` asks before each run takes seconds: folders and
the first files. This reads every image and every record.
"""

import json
import os.path as osp
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np
from mmcv.transforms import LoadAnnotations, LoadImageFromFile
from mmengine import fileio
from mmengine.config import Config
from mmengine.registry import DATASETS
from mmengine.utils import import_modules_from_strings

from ..datasets.coco import Finding, check_coco
from ..datasets.shards import DamagedSample, MemberStore
from ..datasets.stores import StoreError
from ..files import redacted
from ..processes import WorkerDied, map_in_workers, start_server
from .data_checks import DataError, Labels, check_data, dataset_configs, folders_of, labels_of
from .file_checks import Decoders, Looked, Record, look_at_all

SPLITS = ('train', 'val', 'test')
CHUNK = 16


@dataclass
class Report:
    """What was found.

    Attributes:
        images: number of images looked at, by split.
        findings: of each split.
    """

    images: Dict[str, int] = field(default_factory=dict)
    findings: Dict[str, List[Finding]] = field(default_factory=lambda: defaultdict(list))

    def counts(self) -> Dict[Tuple[str, str], int]:
        """Findings by split and kind."""
        found = Counter((s, f.kind) for s, findings in self.findings.items() for f in findings)
        return dict(sorted(found.items()))

    def to_dict(self) -> dict:
        """Plain types, for JSON."""
        findings = {s: [f._asdict() for f in found] for s, found in self.findings.items() if found}
        return dict(images=self.images, findings=findings)


def inspect_data(
    cfg: Config,
    splits: Sequence[str] = SPLITS,
    workers: int = 1,
    progress: Callable[[str, int, int], Any] = lambda split, done, total: None,
) -> Report:
    """Reads all images, maps and annotations of a config's data sets.

    Args:
        cfg: what :func:`mmlinattn.engine.config.load_config` returns.
        splits: of ``'train'``, ``'val'``, ``'test'``; one that is the same as another before it is
            looked at once.
        workers: processes that read images.
        progress: called with the split, how many of its images are done, and how many there are.

    Returns:
        the report, of these kinds: unreadable, truncated (as far as a file tells), outside (of
        the folders of the data set), size (of an image, not what the annotation says), orientation
        (an image that is turned when loaded, unlike its annotation), box without extent, box
        outside, class (out of range, or missing in the file), mask (of another size than its
        image, of several channels, ignored altogether, or none), annotation (a record that lacks
        something), duplicate (the same content in two splits, the same file in two records).

    Raises:
        FileNotFoundError, DataError: a data set that is not there or cannot be built.
        StoreError: a store that is away, or refuses.
    """
    if workers > 1:
        start_server()  # it imports what workers need while annotations are read
    report, done = Report(), []
    contents: Dict[bytes, Tuple[str, str]] = {}
    for split in splits:
        loader = cfg.get(f'{split}_dataloader')
        configs = [*dataset_configs(loader or {})]
        if not configs or configs in done:
            continue
        done.append(configs)
        check_data(cfg, f'{split}_dataloader')
        found = report.findings[split]
        records: List[Record] = []
        for config in configs:
            records += _records(config, cfg, found)
        report.images[split] = len(records)
        # The same file in two lists of a split is one.
        records = [*dict.fromkeys(records)]
        setup = partial(
            _prepare_worker, dict(cfg.get('custom_imports') or {}), dict(MemberStore.of_shard)
        )
        for i, (record, digest, problems) in enumerate(_looked_at(records, workers, setup), 1):
            found += problems
            # Of a split itself: pictures may come twice on purpose.
            first = contents.setdefault(digest, (split, record.img_path)) if digest else None
            if first and first[0] != split:
                what = f'the same content as {first[1]} of {first[0]}'
                found.append(Finding('duplicate', record.img_path, what))
            progress(split, i, len(records))
        found[:] = [finding._replace(where=redacted(finding.where)) for finding in found]
    if not report.images:
        raise DataError(f'the config has no data set for {", ".join(splits)}')
    return report


def _records(config: dict, cfg: Config, found: List[Finding]) -> List[Record]:
    """Images of a data set; findings in its annotations are added."""
    try:
        dataset = DATASETS.build(dict(config, lazy_init=True))
    except Exception as error:
        raise DataError(f'{config.get("type")} cannot be built: {error}') from error
    labels = labels_of(cfg.get('model') or {})
    if hasattr(dataset, 'COCOAPI'):
        masks = any(step.get('with_mask') for step in config.get('pipeline') or ())
        records = _coco_records(dataset, masks, found)
    else:
        try:
            records = _own_records(dataset, labels, found)
        except StoreError:
            raise
        except Exception as error:
            raise DataError(f'{type(dataset).__name__} cannot be read: {error}') from error
    common = dict(
        backend=json.dumps(config.get('backend_args')),
        folders=folders_of(dataset),
        decoders=_decoders(dataset),
    )
    return [record._replace(**common) for record in records]


def _decoders(dataset: Any) -> Decoders:
    decoders = Decoders()
    for step in getattr(getattr(dataset, 'pipeline', None), 'transforms', ()):
        if isinstance(step, LoadImageFromFile):
            decoders = decoders._replace(color_type=step.color_type, image=step.imdecode_backend)
        elif isinstance(step, LoadAnnotations):
            decoders = decoders._replace(seg_map=step.imdecode_backend)
    return decoders


def _own_records(dataset: Any, labels: Labels, found: List[Finding]) -> List[Record]:
    dataset.full_init()
    classes = dataset.metainfo.get('classes')
    if labels.number is None and classes:
        labels = labels._replace(number=len(classes))
    records = []
    for i in range(len(dataset)):
        try:
            info = dataset.get_data_info(i)
        except DamagedSample as error:
            found.append(Finding('unreadable', f'sample {i}', str(error)))
            continue
        if info.get('img_path'):  # sets without files have their pictures in memory
            records.append(_record(info, labels, found))
    return records


def _coco_records(dataset: Any, masks: bool, found: List[Finding]) -> List[Record]:
    path = dataset.ann_file
    try:
        content = json.loads(fileio.get(path, dataset.backend_args))
    except StoreError:
        raise
    except (OSError, ValueError) as error:
        why = 'cannot be read' if isinstance(error, OSError) else 'is no JSON'
        found.append(Finding('annotation', path, f'{why}: {error}'))
        return []
    findings = [*check_coco(content, dataset.metainfo.get('classes'), masks)]
    found += [Finding(kind, f'{path}: {where}', what) for kind, where, what in findings]
    images = content.get('images') if isinstance(content, dict) else None
    records = []
    for image in images if isinstance(images, list) else ():
        name = image.get('file_name') if isinstance(image, dict) else None
        if isinstance(name, str) and name:
            size = (image.get('height'), image.get('width'))
            # Sizes that are no numbers are findings already.
            known = all(type(side) is int and side > 0 for side in size)
            folder = dataset.data_prefix.get('img', '')
            records.append(Record(osp.join(folder, name), size if known else None))
    return records


def _record(info: dict, labels: Labels, found: List[Finding]) -> Record:
    number = labels.number
    path = str(info['img_path'])  # the address alone, of one that has its content with it
    label = info.get('gt_label')
    if isinstance(label, (int, np.integer)) and number is not None and not 0 <= label < number:
        found.append(Finding('class', path, f'its label is {label}, of {number} classes'))
    size = info.get('height'), info.get('width')
    size = size if all(isinstance(side, (int, np.integer)) for side in size) else None
    for instance in info.get('instances') or ():
        found += _check_instance(instance, path, size, number)
    values, seg_map = None, info.get('seg_map_path')
    shift, label_map = int(bool(info.get('reduce_zero_label'))), info.get('label_map') or {}
    if seg_map and number is not None:
        values = frozenset(range(number + shift)) | frozenset(label_map)
    ignored = {labels.ignored, *range(shift)}
    ignored.update(old for old, new in label_map.items() if new == labels.ignored)
    path_of_map = str(seg_map) if seg_map else None
    return Record(path, size, path_of_map, values, ignored=frozenset(ignored))


def _check_instance(instance: dict, path: str, size: Any, number: Optional[int]) -> List[Finding]:
    """Of a data set that is not COCO's: corners, and a label of the model."""
    found, label = [], instance.get('bbox_label')
    if label is not None and number is not None and not 0 <= label < number:
        found.append(Finding('class', path, f'bbox_label is {label}, of {number} classes'))
    if instance.get('bbox') is not None:
        x1, y1, x2, y2 = instance['bbox']
        if not (x2 > x1 and y2 > y1):  # NaN is not either
            found.append(Finding('box without extent', path, f'bbox is {instance["bbox"]}'))
        elif size and (min(x1, y1) < -1 or x2 > size[1] + 1 or y2 > size[0] + 1):
            what = f'bbox is {instance["bbox"]}, the image {size[1]} wide and {size[0]} high'
            found.append(Finding('box outside', path, what))
    return found


def _looked_at(records: List[Record], workers: int, setup: Callable) -> Iterator[Looked]:
    chunks = [records[i : i + CHUNK] for i in range(0, len(records), CHUNK)]
    if workers < 2:
        for chunk in chunks:
            yield from look_at_all(chunk)
        return
    for chunk, looked in zip(chunks, map_in_workers(look_at_all, chunks, workers, setup)):
        if not isinstance(looked, WorkerDied):
            yield from looked
            continue
        # A decoder has crashed or does not end: the images of the chunk one by one.
        alone = [[record] for record in chunk]
        for record, looked in zip(chunk, map_in_workers(look_at_all, alone, workers, setup)):
            if isinstance(looked, WorkerDied):
                what = f'its decoder crashes or does not end: {looked}'
                looked = [(record, None, [Finding('unreadable', record.img_path, what)])]
            yield from looked


def _prepare_worker(custom_imports: dict, shards: dict) -> None:
    """Register what a config imports, and how shards are read, in a worker process."""
    if custom_imports:
        import_modules_from_strings(**custom_imports)
    for shard, backend_args in shards.items():
        MemberStore.know(shard, backend_args)
