"""Checks of annotations in COCO format, record by record."""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple, TypeGuard

import numpy as np

# Pixels that a box or an outline may exceed its image by, because of rounding.
MARGIN = 1.0
# Kinds of findings in objects that MMDetection leaves out of training.
DROPPED = ('area', 'box without extent', 'class')
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
        >>> [(where, what) for _, where, what, fatal in found][1]
        ('annotations', 'none of the 1 objects can be trained: 1 of area')
    """
    lists: List[list] = []
    for name in ('images', 'annotations', 'categories'):
        part = content.get(name) if isinstance(content, Mapping) else None
        if part is None and name == 'annotations' and lists and not trained:
            part = []  # images of a test whose annotations are not published
        if not isinstance(part, list):
            yield Finding('annotation', name, f'must be a list, got {_short(part)}', True)
            return
        lists.append(part)
    images, annotations, categories = lists
    known = yield from _check_categories(categories, classes)
    sizes = yield from _check_images(images)
    seen: Set[Any] = set()
    unused: Counter = Counter()
    for i, record in enumerate(annotations):
        if not isinstance(record, Mapping) or not _is_id(record.get('id')):
            yield Finding('annotation', f'annotations[{i}]', f'has no id: {_short(record)}', True)
            continue
        where = f'annotation {record["id"]!r}'
        if type(record['id']) is str or record['id'] == 0:
            what = 'its id must be a number, not 0: COCO evaluation takes 0 for "not matched"'
            fatal = type(record['id']) is str and not trained
            yield Finding('annotation', where, what, fatal)
        if record['id'] in seen:
            yield Finding('annotation', where, 'its id is there twice', True)
        seen.add(record['id'])
        found = [*_check_annotation(record, where, sizes, known)]
        found += _check_mask(record, where, sizes, trained) if masks else []
        yield from found
        kinds = [finding.kind for finding in found if finding.kind in DROPPED]
        if _is_id(record.get('category_id')) and not known.get(record['category_id'], True):
            kinds.append('classes that are not read')
        if record.get('iscrowd') or record.get('ignore'):
            kinds.append('crowds (iscrowd=1)')
        unused.update(kinds[:1])
    if trained and annotations and sum(unused.values()) == len(annotations):
        reasons = ', '.join(f'{count} of {kind}' for kind, count in unused.items())
        what = f'none of the {len(annotations)} objects can be trained: {reasons}'
        yield Finding('annotation', 'annotations', what, True)


def _check_categories(records: list, classes: Optional[Sequence[str]]):
    """Yield the problems of categories, and return by id if they are read."""
    known: Dict[Any, bool] = {}
    for i, record in enumerate(records):
        fine = isinstance(record, Mapping) and _is_id(record.get('id'))
        if not fine or not isinstance(record.get('name'), str):
            what = f'no id or name: {_short(record)}'
            yield Finding('annotation', f'categories[{i}]', what, True)
        elif record['id'] in known:
            yield Finding('annotation', f'category {record["id"]!r}', 'its id is there twice')
        else:
            known[record['id']] = classes is None or record['name'] in classes
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
    record: Mapping, where: str, sizes: Dict[Any, Size], known: Dict[Any, bool]
) -> Iterator[Finding]:
    image, category = record.get('image_id'), record.get('category_id')
    if not _is_id(image) or image not in sizes:
        what = f'no image has the id {_short(image)}'
        yield Finding('annotation', where, what, not _is_id(image))
        return
    if not _is_id(category) or category not in known:
        what = f'no category has the id {_short(category)}'
        yield Finding('class', where, what, not _is_id(category))
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
        what, is_skipped = _mask_reason(mask, size)
        if what:
            yield Finding('mask', where, what, not (trained and is_skipped))


def _mask_reason(mask: Any, size: Size) -> Tuple[str, bool]:
    """Return why polygons or run lengths do not fit the image, and if a training skips them."""
    height, width = size
    skipped = ''
    if isinstance(mask, list):
        for outline in mask:
            points = np.asarray(outline) if isinstance(outline, list) else np.zeros(())
            if points.dtype.kind not in 'if' or points.ndim != 1 or not np.isfinite(points).all():
                return f'an outline is {_short(outline)}', False
            xs, ys = points[::2], points[1::2]
            most = max(xs.max(initial=0) - width, ys.max(initial=0) - height)
            beyond = max(most, -xs.min(initial=0), -ys.min(initial=0))
            if beyond > MARGIN:
                skipped = f'an outline reaches {beyond:g} pixels beyond its image'
            if beyond > max(size):  # pycocotools would exhaust the memory
                return skipped, False
            if len(points) < 6 or len(points) % 2:
                skipped = f'an outline must be x, y three times or more, got {_short(outline)}'
        return skipped, True
    if not isinstance(mask, Mapping) or not isinstance(mask.get('counts'), (list, str, bytes)):
        return f'segmentation is {_short(mask)}', False
    if not isinstance(mask.get('size'), (list, tuple)) or tuple(mask['size']) != (height, width):
        return f'its size is {_short(mask.get("size"))}, that of its image {[height, width]}', False
    runs = mask['counts']
    if isinstance(runs, list) and not (
        all(type(run) is int and run >= 0 for run in runs) and sum(runs) == height * width
    ):
        return f'its run lengths do not sum to {height * width} pixels: {_short(runs)}', False
    return '', True


def _is_id(value: Any) -> bool:
    return type(value) in (int, str)


def _is_number(value: Any) -> TypeGuard[float]:
    return type(value) in (int, float) and math.isfinite(value)


def _are_numbers(values: Any) -> TypeGuard[List[float]]:
    return isinstance(values, list) and all(map(_is_number, values))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f'{text[:77]}...'
