"""Audit of one image and its segmentation map, read as in training."""

import hashlib
import json
from typing import Iterator, List, NamedTuple, Optional, Set, Tuple

import cv2
import mmcv
import numpy as np
from mmengine import fileio

from ...datasets.audit.coco import Finding
from ...datasets.audit.images import JPEG, PNG, exif_orientation, truncation_reason
from ...utils import outside_reason

Size = Tuple[int, int]  # height, width


class Decoders(NamedTuple):
    """Decoder settings of the loading transforms of a data set.

    Attributes:
        color_type, image: ``color_type`` and ``imdecode_backend`` of its LoadImageFromFile.
        seg_map: ``imdecode_backend`` of its LoadAnnotations.
    """

    color_type: str = 'color'
    image: Optional[str] = 'cv2'
    seg_map: Optional[str] = 'pillow'


class FileRecord(NamedTuple):
    """Image to audit, with the expected properties.

    Attributes:
        img_path: path of the image.
        size: (height, width) in its annotation, or None.
        seg_map_path: path of its segmentation map, or None.
        values: allowed labels of the map besides the ignored ones; None for any.
        backend: ``backend_args`` of the data set, as JSON.
        ignored: labels of the map that are not trained.
        folders: folders of the data set; empty if it names none.
        decoders: decoder settings of the data set.
    """

    img_path: str
    size: Optional[Size] = None
    seg_map_path: Optional[str] = None
    values: Optional[frozenset] = None
    backend: str = 'null'
    ignored: frozenset = frozenset([255])
    folders: Tuple[str, ...] = ()
    decoders: Decoders = Decoders()


Looked = Tuple[FileRecord, Optional[bytes], List[Finding]]


def audit_files(records: List[FileRecord]) -> List[Looked]:
    """Return each record with the result of :func:`audit_file`."""
    cv2.setNumThreads(1)
    return [(record, *audit_file(record)) for record in records]


def audit_file(record: FileRecord) -> Tuple[Optional[bytes], List[Finding]]:
    """Return the digest of an image file and the findings in the image and its map."""
    flag, by = record.decoders.color_type, record.decoders.image
    data, image, found = _decoded(record.img_path, record, flag, by)
    digest = None if data is None else hashlib.blake2b(data, digest_size=16).digest()
    if data is None or image is None:
        return digest, found
    seg_map = None
    if record.seg_map_path:
        by = record.decoders.seg_map
        _, seg_map, problems = _decoded(record.seg_map_path, record, 'unchanged', by)
        found += problems
    if seg_map is not None:
        seg_map = seg_map.squeeze()
        found += _check_labels(record, seg_map)
    turned = _check_orientation(record, data, image, seg_map)
    return digest, found + (turned or [*_check_sizes(record, image, seg_map)])


def _check_sizes(
    record: FileRecord, image: np.ndarray, seg_map: Optional[np.ndarray]
) -> Iterator[Finding]:
    size = image.shape[:2]
    if record.size is not None and size != tuple(record.size):
        what = f'is {size[0]} high and {size[1]} wide, its annotation says {record.size}'
        yield Finding('size', record.img_path, what)
    if seg_map is not None and seg_map.shape[:2] != size:
        what = f'is {seg_map.shape[0]} high and {seg_map.shape[1]} wide, its image {size}'
        yield Finding('mask', str(record.seg_map_path), what)


def _check_orientation(
    record: FileRecord, data: bytes, image: np.ndarray, seg_map: Optional[np.ndarray]
) -> List[Finding]:
    """Find an image that loading rotates by its EXIF orientation, unlike its annotation."""
    flag = record.decoders.color_type
    orientation = exif_orientation(data)
    if orientation == 1 or flag not in ('color', 'grayscale'):
        return []
    stored = mmcv.imfrombytes(data, f'{flag}_ignore_orientation', backend=record.decoders.image)
    if np.array_equal(stored, image):
        return []
    before, after = stored.shape[:2], image.shape[:2]
    sizes = [('annotation', record.size), ('map', None if seg_map is None else seg_map.shape[:2])]
    found = []
    for name, size in sizes:
        if size is None or tuple(size) != before:
            continue
        what = f'its EXIF orientation {orientation} turns it from {before} to {after} when loaded, '
        if before == after:
            what += f'the size of its {name} does not tell for which of both it was made'
        else:
            what += f'its {name} has the size before'
        found.append(Finding('orientation', record.img_path, what))
    return found


def _check_labels(record: FileRecord, seg_map: np.ndarray) -> Iterator[Finding]:
    where = str(record.seg_map_path)
    if seg_map.ndim != 2:
        what = f'has {seg_map.shape[-1]} channels, a map of labels has one'
        yield Finding('mask', where, what)
        return
    labels: Set[int] = {*np.unique(seg_map).tolist()}
    if labels <= record.ignored:
        what = f'has ignored pixels only (labels {sorted(labels)}), nothing is trained'
        yield Finding('mask', where, what)
    elif record.values is not None:
        strange = labels - record.values - record.ignored
        if strange:
            what = f'has labels {sorted(strange)[:5]}, known are {_ranges(record.values)}'
            if min(strange) == max(record.values) + 1 == max(strange):
                what += (
                    '; add the class (num_classes, metainfo.classes), or, if 0 is no class, set '
                    'reduce_zero_label=True'
                )
            yield Finding('class', where, what)


def _ranges(values: frozenset) -> str:
    first, last = min(values), max(values)
    whole = len(values) == last - first + 1
    return f'{first} to {last}' if whole else f'{len(values)} from {first} to {last}'


def labels_in(record: FileRecord) -> Set[int]:
    """Return the labels of the segmentation map of a record; empty if it cannot be read."""
    path, by = record.seg_map_path, record.decoders.seg_map
    seg_map = None if path is None else _decoded(path, record, 'unchanged', by)[1]
    return set() if seg_map is None else {*np.unique(seg_map).tolist()}


def _decoded(
    path: str, record: FileRecord, flag: str, by: Optional[str]
) -> Tuple[Optional[bytes], Optional[np.ndarray], List[Finding]]:
    """Return the content of a file, its decoded image and findings; None if unreadable."""
    what = outside_reason(path, record.folders)
    if what:
        return None, None, [Finding('outside', path, what)]
    try:
        data = fileio.get(path, json.loads(record.backend))
    except (OSError, ValueError) as error:  # ValueError: invalid path
        why = getattr(error, 'strerror', None) or str(error)
        return None, None, [Finding('unreadable', path, why)]
    try:
        image = mmcv.imfrombytes(data, flag, backend=by) if data else None
        why = f'{len(data)} bytes that are no image'
    except Exception as error:  # decoders raise any type of error
        image, why = None, ' '.join(str(error).split()) or type(error).__name__
    cut = truncation_reason(data)
    if image is None and not (cut and data.startswith((JPEG, PNG))):
        return data, None, [Finding('unreadable', path, why)]
    return data, image, [Finding('truncated', path, cut)] if cut else []
