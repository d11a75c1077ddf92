"""Audit of data sets: every image and every record against the annotations.

:func:`mmlinattn.engine.preflight.data.check_data`, which runs before each training, takes seconds:
it looks at folders and the first files only.
"""

import hashlib
import json
import multiprocessing
import os.path as osp
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

import cv2
import numpy as np
from mmengine import fileio
from mmengine.config import Config
from mmengine.registry import DATASETS

from ...datasets.audit.coco import Finding, check_coco
from ...datasets.audit.images import JPEG, PNG, why_incomplete
from ...datasets.file_backends import StoreError
from ...datasets.shards import DamagedSample
from ...utils import redacted
from .data import DataError, check_data, dataset_configs

SPLITS = ('train', 'val', 'test')
CHUNK = 16
IGNORED = 255


class Record(NamedTuple):
    """An image to look at, and what is known of it.

    Attributes:
        img_path: its file.
        size: (height, width) that the annotation says, or None.
        seg_map_path: its map of classes, or None.
        values: that may be in the map, besides 255; None for any.
        backend: ``backend_args`` of its data set, as JSON.
    """

    img_path: str
    size: Optional[Tuple[int, int]] = None
    seg_map_path: Optional[str] = None
    values: Optional[frozenset] = None
    backend: str = 'null'


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
    """Read all images, maps and annotations of a config's data sets.

    Args:
        cfg: what :func:`mmlinattn.engine.config.load_config` returns.
        splits: of ``'train'``, ``'val'``, ``'test'``; one that is the same as another before it is
            looked at once.
        workers: processes that read images.
        progress: called with the split, how many of its images are done, and how many there are.

    Returns:
        the report, of these kinds: unreadable, truncated (as far as a file tells), size (of an
        image, not what the annotation says), box without extent, box outside, class (out of
        range, or missing in the file), mask (of another size than its image, or none), annotation
        (a record that lacks something), duplicate (the same content in two splits).

    Raises:
        FileNotFoundError, DataError: a data set that is not there or cannot be built.
        StoreError: a store that is away, or refuses.
    """
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
        for i, (record, digest, problems) in enumerate(_looked_at(records, workers), 1):
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
    backend = json.dumps(config.get('backend_args'))
    if hasattr(dataset, 'COCOAPI'):
        masks = any(step.get('with_mask') for step in config.get('pipeline') or ())
        records = _coco_records(dataset, masks, found)
    else:
        try:
            records = _own_records(dataset, _num_classes(cfg), found)
        except StoreError:
            raise
        except Exception as error:
            raise DataError(f'{type(dataset).__name__} cannot be read: {error}') from error
    return [record._replace(backend=backend) for record in records]


def _own_records(dataset: Any, number: Optional[int], found: List[Finding]) -> List[Record]:
    dataset.full_init()
    classes = dataset.metainfo.get('classes')
    number = number or (len(classes) if classes else None)
    records = []
    for i in range(len(dataset)):
        try:
            info = dataset.get_data_info(i)
        except DamagedSample as error:
            found.append(Finding('unreadable', f'sample {i}', str(error)))
            continue
        if info.get('img_path'):  # sets without files have their pictures in memory
            records.append(_record(info, number, found))
    return records


def _coco_records(dataset: Any, masks: bool, found: List[Finding]) -> List[Record]:
    path = dataset.ann_file
    try:
        content = json.loads(fileio.get(path, dataset.backend_args))
    except StoreError:
        raise
    except (OSError, ValueError) as error:
        found.append(Finding('annotation', path, f'is no JSON: {error}'))
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


def _record(info: dict, number: Optional[int], found: List[Finding]) -> Record:
    path = str(info['img_path'])  # the address alone, of one that has its content with it
    label = info.get('gt_label')
    if isinstance(label, (int, np.integer)) and number is not None and not 0 <= label < number:
        found.append(Finding('class', path, f'its label is {label}, of {number} classes'))
    size = info.get('height'), info.get('width')
    size = size if all(isinstance(side, (int, np.integer)) for side in size) else None
    for instance in info.get('instances') or ():
        found += _check_instance(instance, path, size, number)
    values, seg_map = None, info.get('seg_map_path')
    if seg_map and number is not None:
        shift = int(bool(info.get('reduce_zero_label')))
        values = frozenset(range(number + shift)) | frozenset(info.get('label_map') or ())
    return Record(path, size, str(seg_map) if seg_map else None, values)


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


def _num_classes(cfg: Config) -> Optional[int]:
    """Of the head of a segmentor or classifier."""
    model = cfg.get('model') or {}
    for name in ('decode_head', 'head'):
        head = model.get(name)
        if isinstance(head, dict) and isinstance(head.get('num_classes'), int):
            return head['num_classes']
    return None


Looked = Tuple[Record, Optional[bytes], List[Finding]]


def _looked_at(records: List[Record], workers: int) -> Iterator[Looked]:
    chunks = [records[i : i + CHUNK] for i in range(0, len(records), CHUNK)]
    if workers < 2:
        for chunk in chunks:
            yield from _look_at_all(chunk)
        return
    rest: List[List[Record]] = []
    fork = multiprocessing.get_context('fork')
    with ProcessPoolExecutor(workers, fork) as pool:
        for chunk, future in [(chunk, pool.submit(_look_at_all, chunk)) for chunk in chunks]:
            try:
                yield from future.result()
            except BrokenProcessPool:
                rest.append(chunk)
    # A decoder has crashed: each image that is left in a process of its own.
    for record in (record for chunk in rest for record in chunk):
        with ProcessPoolExecutor(1, fork) as pool:
            try:
                yield from pool.submit(_look_at_all, [record]).result()
            except BrokenProcessPool:
                what = 'its decoder crashes'
                yield record, None, [Finding('unreadable', record.img_path, what)]


def _look_at_all(records: List[Record]) -> List[Looked]:
    cv2.setNumThreads(1)
    return [(record, *look_at(record)) for record in records]


def look_at(record: Record) -> Tuple[Optional[bytes], List[Finding]]:
    """Digest of an image's file, and findings in it and its map."""
    data, image, found = _decoded(record.img_path, cv2.IMREAD_COLOR, record.backend)
    if image is not None:
        size = image.shape[:2]
        # Loaders turn pictures as cameras say; annotations may be of either way.
        if record.size is not None and size != tuple(record.size):
            what = f'is {size[0]} high and {size[1]} wide, its annotation says {record.size}'
            found.append(Finding('size', record.img_path, what))
        if record.seg_map_path:
            _, seg_map, problems = _decoded(
                record.seg_map_path, cv2.IMREAD_UNCHANGED, record.backend
            )
            found += problems
            if seg_map is not None:
                found += _check_map(record, seg_map, size)
    digest = None if data is None else hashlib.blake2b(data, digest_size=16).digest()
    return digest, found


def _check_map(record: Record, seg_map: np.ndarray, size: Tuple[int, int]) -> Iterator[Finding]:
    where = str(record.seg_map_path)
    if seg_map.ndim == 3 and (seg_map[..., :1] == seg_map).all():
        seg_map = seg_map[..., 0]
    if seg_map.ndim != 2:
        yield Finding('mask', where, f'is a picture of {seg_map.shape[-1]} channels, not of labels')
    elif seg_map.shape != size:
        what = f'is {seg_map.shape[0]} high and {seg_map.shape[1]} wide, its image {size}'
        yield Finding('mask', where, what)
    elif record.values is not None:
        strange: Set[int] = {*np.unique(seg_map).tolist()} - record.values - {IGNORED}
        if strange:
            what = f'has labels {sorted(strange)[:5]}, known are {len(record.values)}'
            yield Finding('class', where, what)


def _decoded(
    path: str, flag: int, backend: str
) -> Tuple[Optional[bytes], Optional[np.ndarray], List[Finding]]:
    """Content of a file and its picture, as far as they can be read."""
    try:
        data = fileio.get(path, json.loads(backend))
    except StoreError:  # says nothing of the file
        raise
    except OSError as error:
        return None, None, [Finding('unreadable', path, error.strerror or str(error))]
    try:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), flag) if data else None
    except cv2.error as error:
        return data, None, [Finding('unreadable', path, ' '.join(str(error).split()))]
    what = why_incomplete(data)
    if image is None and not (what and data.startswith((JPEG, PNG))):
        return data, None, [Finding('unreadable', path, f'{len(data)} bytes that are no image')]
    return data, image, [Finding('truncated', path, what)] if what else []
