"""Audit of data sets: all images and all records are checked against the annotations.

Before each training only seconds of it run: :func:`warn_of_records` on annotation files of moderate
size and :func:`check_maps` on a few segmentation maps.
"""

import json
import multiprocessing
import os
import os.path as osp
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Set, Tuple

import numpy as np
from mmcv.transforms import LoadAnnotations, LoadImageFromFile
from mmengine import fileio
from mmengine.config import Config
from mmengine.utils import import_modules_from_strings

from ...datasets.audit.coco import Finding, check_coco
from ...datasets.file_backends import StoreError
from ...datasets.shards import DamagedSample, TarMemberBackend
from ...utils import redacted
from ...utils.messages import log_warning
from .classes import numbered_by_file
from .data import (
    DataError,
    Labels,
    annotation_path,
    check_data,
    dataset_configs,
    empty_reason,
    folders_of,
    labels_of,
    lazy_dataset,
)
from .file_audit import Decoders, FileRecord, Looked, audit_file, audit_files, labels_in
from .sample_loading import CheckedLoading, base_datasets

SPLITS = ('train', 'val', 'test')
CHUNK = 16
# Before a training: largest annotation file whose records are checked, and maps of a data set.
MAX_BYTES = 32 * 2**20
MAPS = 8


@dataclass
class AuditReport:
    """Result of an audit.

    Attributes:
        images: number of audited images, by split.
        findings: findings, by split.
        same: splits that read the same files as an earlier one, with its name.
    """

    images: Dict[str, int] = field(default_factory=dict)
    same: Dict[str, str] = field(default_factory=dict)
    findings: Dict[str, List[Finding]] = field(default_factory=lambda: defaultdict(list))

    def counts(self) -> Dict[Tuple[str, str], int]:
        """Return the number of findings by split and kind."""
        found = Counter((s, f.kind) for s, findings in self.findings.items() for f in findings)
        return dict(sorted(found.items()))

    def to_dict(self) -> dict:
        """Return the report as a dict of plain types, for JSON."""
        findings = {s: [f._asdict() for f in found] for s, found in self.findings.items() if found}
        return dict(images=self.images, same=self.same, findings=findings)


def audit_dataset(
    cfg: Config,
    splits: Sequence[str] = SPLITS,
    workers: int = 1,
    progress: Callable[[str, int, int], Any] = lambda split, done, total: None,
) -> AuditReport:
    """Read all images, maps and annotations of a config's data sets.

    Args:
        cfg: config from :func:`mmlinattn.engine.config.load_config`.
        splits: any of ``'train'``, ``'val'``, ``'test'``; a split that equals an earlier one is
            not read again, and is a finding if that one is ``'train'``.
        workers: number of processes that read images.
        progress: function called with the split, the number of finished images and their total.

    Returns:
        A report with findings of these kinds: unreadable; truncated (as far as the file shows);
        outside (of the folders of the data set); size (of the image differs from the annotation);
        orientation (loading rotates the image, unlike its annotation); box without extent; box
        outside; class (out of range, or missing in the file); mask (of another size than the
        image, with several channels, with ignored pixels only, or missing); annotation (an
        incomplete record); duplicate (the same content in two splits, the same file in two
        records).

    Raises:
        FileNotFoundError, DataError: a data set does not exist or cannot be built.
        StoreError: a store is unavailable or denies access.
    """
    report = AuditReport()
    done: Dict[str, List[dict]] = {}
    contents: Dict[bytes, Tuple[str, str]] = {}
    for split in splits:
        loader = cfg.get(f'{split}_dataloader')
        configs = [*dataset_configs(loader or {})]
        if not configs:
            continue
        files = [_files_of(config) for config in configs]
        earlier = next((name for name, read in done.items() if read == files), None)
        if earlier:
            report.same[split] = earlier
            if earlier == 'train':
                what = 'reads the images that are trained: its scores say nothing of other images'
                report.findings[split].append(Finding('duplicate', f'{split}_dataloader', what))
            continue
        done[split] = files
        check_data(cfg, f'{split}_dataloader')
        found = report.findings[split]
        records: List[FileRecord] = []
        for config in configs:
            records += _records(config, cfg, found)
        report.images[split] = len(records)
        # Several lists of a split may name the same file.
        records = [*dict.fromkeys(records)]
        setup = partial(
            _prepare_worker,
            dict(cfg.get('custom_imports') or {}),
            dict(TarMemberBackend.shard_backend_args),
        )
        for i, (record, digest, problems) in enumerate(_audited(records, workers, setup), 1):
            found += problems
            # Compare with other splits only: a split may repeat an image on purpose.
            first = contents.setdefault(digest, (split, record.img_path)) if digest else None
            if first and first[0] != split:
                what = f'the same content as {first[1]} of {first[0]}'
                found.append(Finding('duplicate', record.img_path, what))
            progress(split, i, len(records))
        found[:] = [finding._replace(where=redacted(finding.where)) for finding in found]
    if not report.images:
        raise DataError(f'the config has no data set for {", ".join(splits)}')
    return report


def _files_of(config: dict) -> dict:
    """Return the options of a data set config that may choose its files."""
    others = {'pipeline', 'filter_cfg', 'metainfo', 'return_classes'}
    if config.get('ann_file'):  # without one, CIFAR's test_mode chooses the files
        others.add('test_mode')
    return {name: value for name, value in config.items() if name not in others}


def warn_of_records(cfg: Config, *splits: str) -> None:
    """Log one line for each COCO file of some splits whose records have problems.

    The frameworks train with such files and skip what they cannot use. Files above 32 MiB are not
    read, which bounds the time to some seconds.

    Args:
        cfg: config whose data sets exist.
        splits: any of ``'train'``, ``'val'``, ``'test'``.
    """
    for config in dataset_configs([cfg.get(f'{split}_dataloader') for split in splits]):
        path = annotation_path(config)
        if not path.endswith('.json'):
            continue
        data = fileio.get(path, config.get('backend_args'))
        try:
            content = json.loads(data) if len(data) <= MAX_BYTES else None
        except ValueError:  # an error when it is loaded
            continue
        if not isinstance(content, dict) or not {'images', 'annotations'} <= {*content}:
            continue
        masks = any(step.get('with_mask') for step in config.get('pipeline') or ())
        findings = [*check_coco(content, masks=masks)]
        if findings:
            counts = Counter(finding.kind for finding in findings)
            kinds = ', '.join(f'{count} of {kind!r}' for kind, count in counts.items())
            log_warning(
                f'{path} has problems: {kinds}; the first: {findings[0].where}: '
                f'{findings[0].what}. mmlinattn check-data lists all'
            )


def check_maps(dataset: Any, labels: Labels) -> None:
    """Look at a few segmentation maps of a data set, spread over all of them.

    Args:
        dataset: loaded data set; one without maps passes.
        labels: labels that the model is trained with.

    Raises:
        DataError: a map has several channels, another size than its image, or a label that the
            model lacks. Maps with label 0 and ignored pixels only are logged.
    """
    if not labels.of_pixels or labels.number is None:
        return
    for part in base_datasets(dataset):
        found: Set[int] = set()
        ignored = frozenset([labels.ignored])
        last = len(part) - 1
        for i in sorted({last * k // (MAPS - 1) for k in range(MAPS if last >= 0 else 0)}):
            try:
                info = part.get_data_info(i)
            except DamagedSample:
                continue
            if not info.get('seg_map_path'):
                break
            record = _with_options(
                _record(info, labels, []), part, getattr(part, 'backend_args', None)
            )
            for finding in audit_file(record)[1]:
                if finding.kind in ('class', 'mask') and 'ignored pixels only' not in finding.what:
                    raise DataError(f'{finding.where} {finding.what}')
            ignored = record.ignored
            found |= labels_in(record)
        if found == {0, labels.ignored} and 0 not in ignored:
            log_warning(
                f'the segmentation maps that were looked at have the labels 0 and {labels.ignored} '
                f'only, and {labels.ignored} is ignored (ignore_index): nothing but class 0 is '
                'trained. Write the labels of other classes as 1, 2, ...'
            )


def _records(config: dict, cfg: Config, found: List[Finding]) -> List[FileRecord]:
    """Return the images of a data set and append findings in its annotations to ``found``."""
    dataset = lazy_dataset(config)
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
            if 'need at least one array to concatenate' in str(error):  # there is no image
                raise DataError(empty_reason(dict(dataset=config))) from error
            raise DataError(f'{type(dataset).__name__} cannot be read: {error}') from error
    return [_with_options(record, dataset, config.get('backend_args')) for record in records]


def _with_options(record: FileRecord, dataset: Any, backend_args: Optional[dict]) -> FileRecord:
    return record._replace(
        backend=json.dumps(backend_args), folders=folders_of(dataset), decoders=_decoders(dataset)
    )


def _decoders(dataset: Any) -> Decoders:
    decoders = Decoders()
    for step in getattr(getattr(dataset, 'pipeline', None), 'transforms', ()):
        step = step.load if isinstance(step, CheckedLoading) else step
        if isinstance(step, LoadImageFromFile):
            decoders = decoders._replace(color_type=step.color_type, image=step.imdecode_backend)
        elif isinstance(step, LoadAnnotations):
            decoders = decoders._replace(seg_map=step.imdecode_backend)
    return decoders


def _own_records(dataset: Any, labels: Labels, found: List[Finding]) -> List[FileRecord]:
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
        if info.get('img_path'):  # data sets without files keep their images in memory
            records.append(_record(info, labels, found))
    return records


def _coco_records(dataset: Any, masks: bool, found: List[Finding]) -> List[FileRecord]:
    path = dataset.ann_file
    try:
        content = json.loads(fileio.get(path, dataset.backend_args))
    except StoreError:
        raise
    except (OSError, ValueError) as error:
        why = 'cannot be read' if isinstance(error, OSError) else 'is no JSON'
        found.append(Finding('annotation', path, f'{why}: {error}'))
        return []
    classes = dataset.metainfo.get('classes') if numbered_by_file(type(dataset)) else None
    findings = [*check_coco(content, classes, masks)]
    found += [Finding(kind, f'{path}: {where}', what) for kind, where, what in findings]
    images = content.get('images') if isinstance(content, dict) else None
    records = []
    for image in images if isinstance(images, list) else ():
        name = image.get('file_name') if isinstance(image, dict) else None
        if isinstance(name, str) and name:
            size = (image.get('height'), image.get('width'))
            # check_coco already reports sizes that are no numbers.
            known = all(type(side) is int and side > 0 for side in size)
            folder = dataset.data_prefix.get('img', '')
            records.append(FileRecord(osp.join(folder, name), size if known else None))
    return records


def _record(info: dict, labels: Labels, found: List[Finding]) -> FileRecord:
    number = labels.number
    path = str(info['img_path'])  # str drops the content that some paths carry
    label = info.get('gt_label')
    if isinstance(label, (int, np.integer)) and number is not None and not 0 <= label < number:
        found.append(Finding('class', path, f'its label is {label}, of {number} classes'))
    size: Any = info.get('height'), info.get('width')
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
    return FileRecord(path, size, path_of_map, values, ignored=frozenset(ignored))


def _check_instance(instance: dict, path: str, size: Any, number: Optional[int]) -> List[Finding]:
    """Check corners and label of an instance of a data set without a COCO file."""
    found, label = [], instance.get('bbox_label')
    if label is not None and number is not None and not 0 <= label < number:
        found.append(Finding('class', path, f'bbox_label is {label}, of {number} classes'))
    if instance.get('bbox') is not None:
        x1, y1, x2, y2 = instance['bbox']
        if not (x2 > x1 and y2 > y1):  # NaN fails this test, too
            found.append(Finding('box without extent', path, f'bbox is {instance["bbox"]}'))
        elif size and (min(x1, y1) < -1 or x2 > size[1] + 1 or y2 > size[0] + 1):
            what = f'bbox is {instance["bbox"]}, the image {size[1]} wide and {size[0]} high'
            found.append(Finding('box outside', path, what))
    return found


def _audited(records: List[FileRecord], workers: int, setup: Callable) -> Iterator[Looked]:
    chunks = [records[i : i + CHUNK] for i in range(0, len(records), CHUNK)]
    if workers < 2:
        for chunk in chunks:
            yield from audit_files(chunk)
        return
    context = multiprocessing.get_context('forkserver')
    context.set_forkserver_preload([__name__])
    setup = partial(_with_environment, dict(os.environ), setup)  # the server's may be older
    pool = ProcessPoolExecutor(workers, context, setup)
    futures = [pool.submit(audit_files, chunk) for chunk in chunks]
    for number, chunk in enumerate(chunks):
        try:
            yield from futures[number].result()
        except BrokenProcessPool:
            # A decoder crashed, of this chunk or of another: read the images of this one alone.
            for record in chunk:
                yield from _audited_alone(record, context, setup)
            pool = ProcessPoolExecutor(workers, context, setup)
            rest = range(number + 1, len(chunks))
            futures[number + 1 :] = [pool.submit(audit_files, chunks[i]) for i in rest]
    pool.shutdown()


def _with_environment(environment: Dict[str, str], setup: Callable) -> None:
    os.environ.update(environment)
    setup()


def _audited_alone(record: FileRecord, context: Any, setup: Callable) -> List[Looked]:
    with ProcessPoolExecutor(1, context, setup) as pool:
        try:
            return pool.submit(audit_files, [record]).result()
        except BrokenProcessPool:
            return [(record, None, [Finding('unreadable', record.img_path, 'its decoder crashes')])]


def _prepare_worker(custom_imports: dict, shards: dict) -> None:
    """Import the custom modules of a config and register its shards in a worker process."""
    if custom_imports:
        import_modules_from_strings(**custom_imports)
    for shard, backend_args in shards.items():
        TarMemberBackend.register(shard, backend_args)
