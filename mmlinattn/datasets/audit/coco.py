"""Checks of annotations in COCO format, record by record."""

import codecs
import json
import math
from collections.abc import Mapping
from typing import (
    Any,
    Container,
    Dict,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    TypeGuard,
)

import numpy as np
from mmengine import fileio

# Pixels that a box or an outline may exceed its image by, because of rounding.
MARGIN = 1.0
# Kinds of findings in objects that MMDetection leaves out of training.
DROPPED = ('area', 'box without extent', 'mask without extent', 'unknown id')
Size = Tuple[int, int]  # height, width


class Finding(NamedTuple):
    """Problem found in a config or its data.

    Attributes:
        kind: category of the problem, for counting.
        where: file, record or option.
        what: description of the problem.
        fatal: True if a run ends by it, or would give wrong results.
    """

    kind: str
    where: str
    what: str
    fatal: bool = False


def read_json(path: str, backend_args: Optional[dict] = None) -> Any:
    """Return the content of a JSON file.

    Raises:
        ValueError: it is no JSON in UTF-8, or begins with a byte-order mark.
        OSError: it cannot be read.
    """
    data = fileio.get(path, backend_args)
    if data.startswith(codecs.BOM_UTF8):
        raise ValueError('it begins with a byte-order mark: save it as UTF-8 without one')
    try:
        return json.loads(data.decode())
    except ValueError as error:
        raise ValueError(f'it is no JSON: {error}') from error


def check_coco(
    content: Any,
    classes: Optional[Sequence[str]] = None,
    masks: bool = False,
    trained: bool = True,
) -> Iterator[Finding]:
    """Yield the problems in annotations, without reading the images.

    Args:
        content: content of the JSON file.
        classes: classes that the data set is read with; None for all classes of the file.
        masks: each object must have a mask; without, masks are not looked at.
        trained: the data are for training, not for scoring.

    Example:
        >>> image = dict(id=1, file_name='a.jpg', height=10, width=20)
        >>> box = dict(id=1, image_id=1, category_id=7, bbox=[0, 0, 5, 4], area=0, iscrowd=0)
        >>> category = dict(id=7, name='cat')
        >>> found = check_coco(dict(images=[image], annotations=[box], categories=[category]))
        >>> [(where, what[:36]) for _, where, what, fatal in found if fatal]
        [('annotations', 'none of the 1 objects can be trained')]
    """
    lists: List[list] = []
    for name in ('images', 'annotations', 'categories'):
        part = content.get(name) if isinstance(content, Mapping) else None
        if part is None and name == 'annotations' and lists and not trained:
            part = []  # images of a test whose annotations are not published
        if not isinstance(part, list) or (name != 'annotations' and not part):
            what = f'must be a list with at least one record, got {_short(part)}'
            yield Finding('annotation', name, what, True)
            return
        lists.append(part)
    images, annotations, categories = lists
    known = yield from _check_categories(categories, classes)
    sizes = yield from _check_images(images)
    seen, used = set(), set()
    unused: Dict[str, List[str]] = {}
    for i, record in enumerate(annotations):
        if not isinstance(record, Mapping) or not _is_id(record.get('id')):
            yield Finding('annotation', f'annotations[{i}]', f'has no id: {_short(record)}', True)
            continue
        where = f'annotation {record["id"]!r}'
        if record['id'] == 0:
            what = 'its id is 0, which COCO evaluation takes for "not matched": count from 1'
            yield Finding('annotation', where, what)
        if type(record['id']) is str:
            what = 'its id is text: COCO evaluation needs a number'
            yield Finding('annotation', where, what, not trained)
        if record['id'] in seen:
            yield Finding('annotation', where, 'its id is there twice', True)
        seen.add(record['id'])
        found = [*_check_annotation(record, where, sizes, known)]
        found += _check_mask(record, where, sizes, trained) if masks else []
        yield from found
        reasons = [f'{each.kind} ({each.what})' for each in found if each.kind in DROPPED]
        category = record.get('category_id')
        if _is_id(category) and not known.get(category, True):
            reasons.append('classes that are not read')
        if record.get('iscrowd') or record.get('ignore'):
            reasons.append('crowds (iscrowd=1)')
        if reasons:
            unused.setdefault(reasons[0].partition(' (')[0], []).append(reasons[0])
        elif _is_id(category):
            used.add(category)
    if trained and annotations and sum(map(len, unused.values())) == len(annotations):
        what = ', '.join(f'{len(same)} of {same[0]}' for same in unused.values())
        what = f'none of the {len(annotations)} objects can be trained: {what}'
        yield Finding('annotation', 'annotations', what, True)
    missing = [name for category, name in known.items() if name and category not in used]
    if trained and used and missing:
        what = f'no object of {_short(missing)} can be trained'
        yield Finding('class', 'annotations', what)


def _check_categories(records: list, classes: Optional[Sequence[str]]):
    """Yield the problems of categories, and return their names by id, '' if they are not read."""
    known: Dict[Any, str] = {}
    for i, record in enumerate(records):
        fine = isinstance(record, Mapping) and _is_id(record.get('id'))
        if not fine or not isinstance(record.get('name'), str):
            what = f'no id or name: {_short(record)}'
            yield Finding('annotation', f'categories[{i}]', what, True)
        elif record['id'] in known:
            yield Finding('annotation', f'category {record["id"]!r}', 'its id is there twice')
        else:
            is_read = classes is None or record['name'] in classes
            known[record['id']] = record['name'] if is_read else ''
    return known


def _check_images(records: list):
    """Yield the problems of images, and return their sizes by id, (0, 0) if unknown."""
    sizes: Dict[Any, Size] = {}
    named: Dict[str, Any] = {}
    for i, record in enumerate(records):
        if not isinstance(record, Mapping) or not _is_id(record.get('id')):
            yield Finding('annotation', f'images[{i}]', f'has no id: {_short(record)}', True)
            continue
        where = f'image {record["id"]!r}'
        name: Any = record.get('file_name')
        size: Any = record.get('height'), record.get('width')
        if record['id'] in sizes:
            yield Finding('annotation', where, 'its id is there twice')
        sizes[record['id']] = (0, 0)
        if not isinstance(name, str) or not name:
            yield Finding('annotation', where, f'file_name is {_short(name)}', True)
        elif named.setdefault(name, record['id']) != record['id']:
            what = f'has the same file_name as image {named[name]!r}, {_short(name)}'
            yield Finding('duplicate', where, what)
        if not all(type(side) is int and side > 0 for side in size):
            yield Finding('annotation', where, f'(height, width) is {_short(size)}', True)
        else:
            sizes[record['id']] = size
    return sizes


def _check_annotation(
    record: Mapping, where: str, sizes: Dict[Any, Size], known: Dict[Any, str]
) -> Iterator[Finding]:
    image, category = record.get('image_id'), record.get('category_id')
    if not _is_id(image) or image not in sizes:
        yield Finding('unknown id', where, _unknown('image', image, sizes), not _is_id(image))
        return
    if not _is_id(category) or category not in known:
        what = _unknown('category', category, known)
        yield Finding('unknown id', where, what, not _is_id(category))
    area, crowd = record.get('area'), record.get('iscrowd', 0)
    if not _is_number(area) or area <= 0:
        what = f'area is {_short(area)}: objects without area are not trained'
        yield Finding('area', where, what, not _is_number(area))
    if crowd not in (0, 1):
        yield Finding('annotation', where, f'iscrowd is {_short(crowd)}')
    box = record.get('bbox')
    height, width = sizes[image]
    if not _are_numbers(box) or len(box) != 4:
        yield Finding('annotation', where, f'bbox is {_short(box)}', True)
    elif height:  # else the size is reported
        x, y, w, h = box
        if w < 1 or h < 1:
            what = f'bbox is {box} (x, y, width, height): sides below 1 pixel are not trained'
            yield Finding('box without extent', where, what)
        elif min(x, y) < -MARGIN or x + w > width + MARGIN or y + h > height + MARGIN:
            is_off = x >= width or y >= height or x + w <= 0 or y + h <= 0
            kind = 'box without extent' if is_off else 'box outside'
            what = f'bbox is {box}, its image {width} wide and {height} high'
            yield Finding(kind, where, what)


def _check_mask(
    record: Mapping, where: str, sizes: Dict[Any, Size], trained: bool
) -> Iterator[Finding]:
    mask, image = record.get('segmentation'), record.get('image_id')
    size = sizes.get(image, (0, 0)) if _is_id(image) else (0, 0)
    if not mask and not record.get('ignore'):
        what = 'has none, but masks are trained: for boxes alone use no mask head'
        yield Finding('mask', where, what, True)
    elif mask and 0 not in size:
        kind, what = _mask_fault(mask, size)
        if what:
            yield Finding(kind or 'mask', where, what, not (trained and kind))


def _mask_fault(mask: Any, size: Size) -> Tuple[str, str]:
    """Return the kind of finding, '' if it ends a training, and why a mask does not fit."""
    height, width = size
    if isinstance(mask, list):
        what, is_empty = '', True
        for outline in mask:
            points = np.asarray(outline) if isinstance(outline, list) else np.zeros(())
            if points.dtype.kind not in 'if' or points.ndim != 1 or not np.isfinite(points).all():
                return '', f'an outline is {_short(outline)}'
            xs, ys = points[::2], points[1::2]
            most = max(xs.max(initial=0) - width, ys.max(initial=0) - height)
            beyond = max(most, -xs.min(initial=0), -ys.min(initial=0))
            if beyond > MARGIN:
                what = f'an outline reaches {beyond:g} pixels beyond its image'
            if beyond > max(size):  # pycocotools would exhaust the memory
                return '', what
            if len(points) < 6 or len(points) % 2:
                what = f'an outline must be x, y three times or more, got {_short(outline)}'
            else:
                is_empty = False
        return 'mask without extent' if is_empty else 'mask', what
    if not isinstance(mask, Mapping) or not isinstance(mask.get('counts'), (list, str, bytes)):
        return '', f'segmentation is {_short(mask)}'
    if not isinstance(mask.get('size'), (list, tuple)) or tuple(mask['size']) != (height, width):
        return '', f'its size is {_short(mask.get("size"))}, that of its image {[height, width]}'
    runs = mask['counts']
    if isinstance(runs, list) and not (
        all(type(run) is int and run >= 0 for run in runs) and sum(runs) == height * width
    ):
        return '', f'its run lengths do not sum to {height * width} pixels: {_short(runs)}'
    return 'mask', ''


def _unknown(kind: str, value: Any, known: Container) -> str:
    """Return that no record has an id, and the one that differs in its type alone."""
    what = f'no {kind} has the id {_short(value)}'
    other = str(value) if type(value) is int else int(value) if str(value).isdecimal() else None
    return f'{what}, one has {other!r}: write both as numbers' if other in known else what


def _is_id(value: Any) -> bool:
    return type(value) in (int, str)


def _is_number(value: Any) -> TypeGuard[float]:
    return type(value) in (int, float) and math.isfinite(value)


def _are_numbers(values: Any) -> TypeGuard[List[float]]:
    return isinstance(values, list) and all(map(_is_number, values))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f'{text[:77]}...'
