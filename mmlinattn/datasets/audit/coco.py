"""Checks of annotations in COCO format, record by record."""

import json
import math
import re
from collections.abc import Mapping
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple, TypeGuard

from ...utils.suggest import shorten

# Pixels that a box or an outline may exceed its image by, because of rounding.
MARGIN = 1.0
Size = Tuple[int, int]  # height, width


class Finding(NamedTuple):
    """Problem found in a data set.

    Attributes:
        kind: category of the problem, for counting.
        where: file or record.
        what: description of the problem.
    """

    kind: str
    where: str
    what: str


def check_coco(
    content: Any, classes: Optional[Sequence[str]] = None, masks: bool = False
) -> Iterator[Finding]:
    """Yield the problems in annotations, without reading the images.

    Args:
        content: content of the JSON file.
        classes: classes that the data set is read with; None for all classes of the file.
        masks: True if each object must have a mask.

    Example:
        >>> image = dict(id=1, file_name='a.jpg', height=10, width=20)
        >>> box = dict(id=1, image_id=1, category_id=7, bbox=[0, 0, 5, 0], area=0, iscrowd=0)
        >>> category = dict(id=7, name='cat')
        >>> found = check_coco(dict(images=[image], annotations=[box], categories=[category]))
        >>> [*found][0]
        Finding(kind='box without extent', where='annotation 1', what='bbox is [0, 0, 5, 0]')
    """
    lists: List[list] = []
    for name in ('images', 'annotations', 'categories'):
        part = content.get(name) if isinstance(content, Mapping) else None
        if not isinstance(part, list):
            yield Finding('annotation', name, f'must be a list, got {_short(part)}')
            return
        lists.append(part)
    images, annotations, categories = lists
    known = yield from _check_categories(categories)
    yield from check_classes(categories, classes or ())
    sizes = yield from _check_images(images)
    seen: Set[Any] = set()
    crowds = 0
    for i, record in enumerate(annotations):
        if not isinstance(record, Mapping) or not _is_id(record.get('id')):
            yield Finding('annotation', f'annotations[{i}]', f'has no id: {_short(record)}')
            continue
        where = f'annotation {record["id"]!r}'
        if type(record['id']) is str or record['id'] == 0:
            what = 'its id must be a number, not 0: COCO evaluation takes 0 for "not matched"'
            yield Finding('annotation', where, what)
        if record['id'] in seen:
            yield Finding('annotation', where, 'its id is there twice')
        seen.add(record['id'])
        crowds += record.get('iscrowd') == 1
        yield from _check_annotation(record, where, sizes, known)
        if masks and not record.get('segmentation') and not record.get('ignore'):
            what = 'has none, but masks are trained: for boxes alone use no mask head'
            yield Finding('mask', where, what)
    if annotations and crowds == len(annotations):
        what = f'all {crowds} objects are crowds (iscrowd=1), which are neither trained nor scored'
        yield Finding('annotation', 'annotations', what)


def check_classes(categories: list, classes: Sequence[str]) -> Iterator[Finding]:
    """Yield the problems in the mapping of a data set's classes to the categories of its file.

    MMDetection takes the categories whose names are classes and numbers them in the order of the
    file. Label 0 is therefore the first of these, not the first class. Other categories may exist.

    Args:
        categories: records of the categories.
        classes: classes that the data set is read with.

    Example:
        >>> [found] = check_classes([dict(id=1, name='nut')], ['bolt'])
        >>> found.what
        "the file lacks 'bolt', 1 of the 1 classes that it is read with; it has 'nut'"
    """
    names = [r['name'] for r in categories if isinstance(r, Mapping) and _is_name(r.get('name'))]
    missing = [name for name in classes if name not in names]
    ordered = [name for name in names if name in classes]
    twice = sorted({name for name in ordered if ordered.count(name) > 1})
    what = None
    if len({*classes}) < len(classes):
        what = f'{_listed(classes)} has a name twice'
    elif missing:
        what = (
            f'the file lacks {_listed(missing)}, {len(missing)} of the {len(classes)} classes that '
            f'it is read with; it has {_listed(names)}'
        )
    elif twice:
        what = f'the file has {_listed(twice)} twice, later classes would get other labels'
    elif ordered != list(classes):
        i = next(i for i, name in enumerate(classes) if name != ordered[i])
        what = (
            f'the file has the classes in another order, {_listed(ordered)}, which numbers the '
            f'labels: {ordered[i]!r} would be called {classes[i]!r}'
        )
    if what:
        yield Finding('class', 'the classes', what)


def read_categories(data: bytes) -> list:
    """Return the categories of a COCO file, without parsing the rest of a large file.

    Args:
        data: content of the JSON file.

    Raises:
        ValueError: the file is no JSON object with a list of categories.

    Example:
        >>> read_categories(b'{"images": [], "categories": [{"id": 1, "name": "cat"}]}')
        [{'id': 1, 'name': 'cat'}]
    """
    found = []
    for match in re.finditer(rb'"categories"\s*:\s*(?=\[)', data):
        for size in (2**20, len(data)):
            text = data[match.end() : match.end() + size].decode(errors='ignore')
            try:
                found.append(json.JSONDecoder().raw_decode(text)[0])
                break
            except ValueError:
                continue
    if len(found) == 1:
        return found[0]
    content = json.loads(data)  # another encoding, or records with a list of this name
    if not isinstance(content, dict) or not isinstance(content.get('categories'), list):
        raise ValueError('it has no list of categories')
    return content['categories']


def _check_categories(records: list):
    ids: Set[Any] = set()
    for i, record in enumerate(records):
        fine = isinstance(record, Mapping) and _is_id(record.get('id'))
        if not fine or not _is_name(record.get('name')):
            yield Finding('annotation', f'categories[{i}]', f'no id or name: {_short(record)}')
        elif record['id'] in ids:
            yield Finding('annotation', f'category {record["id"]!r}', 'its id is there twice')
        else:
            ids.add(record['id'])
    return ids


def _check_images(records: list):
    sizes: Dict[Any, Size] = {}
    named: Dict[str, Any] = {}
    for i, record in enumerate(records):
        if not isinstance(record, Mapping) or not _is_id(record.get('id')):
            yield Finding('annotation', f'images[{i}]', f'has no id: {_short(record)}')
            continue
        where = f'image {record["id"]!r}'
        name: Any = record.get('file_name')
        size: Any = record.get('height'), record.get('width')
        if record['id'] in sizes:
            yield Finding('annotation', where, 'its id is there twice')
        sizes[record['id']] = (0, 0)
        if not isinstance(name, str) or not name:
            yield Finding('annotation', where, f'file_name is {_short(name)}')
        elif named.setdefault(name, record['id']) != record['id']:
            what = f'has the same file_name as image {named[name]!r}, {_short(name)}'
            yield Finding('duplicate', where, what)
        if not all(type(side) is int and side > 0 for side in size):
            yield Finding('annotation', where, f'(height, width) is {_short(size)}')
        else:
            sizes[record['id']] = size
    return sizes


def _check_annotation(
    record: Mapping, where: str, sizes: Dict[Any, Size], known: Set[Any]
) -> Iterator[Finding]:
    image, category = record.get('image_id'), record.get('category_id')
    size = sizes.get(image) if _is_id(image) else None
    if size is None:
        yield Finding('annotation', where, f'no image has the id {_short(image)}')
        return
    if not _is_id(category) or category not in known:
        yield Finding('class', where, f'no category has the id {_short(category)}')
    area, crowd = record.get('area'), record.get('iscrowd', 0)
    if not _is_number(area) or area < 0:
        yield Finding('annotation', where, f'area is {_short(area)}')
    if crowd not in (0, 1):
        yield Finding('annotation', where, f'iscrowd is {_short(crowd)}')
    if 0 in size:
        return  # _check_images has reported the size
    height, width = size
    box = record.get('bbox')
    if not _are_numbers(box) or len(box) != 4:
        yield Finding('annotation', where, f'bbox is {_short(box)}')
    else:
        x, y, w, h = box
        if w <= 0 or h <= 0:
            yield Finding('box without extent', where, f'bbox is {_short(box)}')
        elif min(x, y) < -MARGIN or x + w > width + MARGIN or y + h > height + MARGIN:
            what = f'bbox is {_short(box)}, its image {width} wide and {height} high'
            yield Finding('box outside', where, what)
    what = bad_mask_reason(record.get('segmentation'), size)
    if what:
        yield Finding('mask', where, what)


def bad_mask_reason(mask: Any, size: Size, margin: float = MARGIN) -> Optional[str]:
    """Return why a segmentation does not fit the image size, or None if it fits or is empty.

    Args:
        mask: polygons, or run lengths, compressed or not.
        size: (height, width) of the image.
        margin: pixels that an outline may exceed the image by.
    """
    if not mask:
        return None
    height, width = size
    if isinstance(mask, list):
        for outline in mask:
            if not _are_numbers(outline) or len(outline) < 6 or len(outline) % 2:
                return f'an outline must be x, y three times or more, got {_short(outline)}'
            xs, ys = outline[::2], outline[1::2]
            beyond = max(max(xs) - width, max(ys) - height, -min(xs), -min(ys))
            if beyond > margin:
                return f'an outline reaches {beyond:g} pixels beyond its image'
        return None
    if not isinstance(mask, Mapping) or not isinstance(mask.get('counts'), (list, str, bytes)):
        return f'segmentation is {_short(mask)}'
    if not isinstance(mask.get('size'), (list, tuple)) or tuple(mask['size']) != (height, width):
        return f'its size is {_short(mask.get("size"))}, that of its image {[height, width]}'
    counts = mask['counts']
    runs = counts if isinstance(counts, list) else decode_run_lengths(counts)
    if not runs or not all(type(run) is int and run >= 0 for run in runs):
        return 'its run lengths are none'
    if sum(runs) != height * width:
        return f'its run lengths sum to {sum(runs)} pixels instead of {height * width}'
    return None


def decode_run_lengths(counts: Any) -> Optional[List[int]]:
    """Return the run lengths in COCO's compressed string, or None if it is invalid.

    Each character holds six bits, counted from '0': five are a digit, the sixth is set if more
    digits follow. From the fourth number on, each is the difference to the last but one.

    Example:
        >>> decode_run_lengths('T18')
        [36, 8]
    """
    data = counts.encode('latin1', 'replace') if isinstance(counts, str) else counts
    runs: List[int] = []
    value = shift = 0
    for byte in data:
        digit = byte - 48
        if not 0 <= digit < 64 or shift > 30:
            return None
        value |= (digit & 31) << shift
        shift += 5
        if digit & 32:
            continue
        if digit & 16:  # the sign of the last digit
            value -= 1 << shift
        runs.append(value + (runs[-2] if len(runs) > 2 else 0))
        value = shift = 0
    return None if shift else runs


def _is_id(value: Any) -> bool:
    return type(value) in (int, str)


def _is_name(value: Any) -> bool:
    return isinstance(value, str)


def _listed(names: Sequence[str]) -> str:
    return shorten([*map(repr, names)]) or 'none'


def _is_number(value: Any) -> TypeGuard[float]:
    return type(value) in (int, float) and math.isfinite(value)


def _are_numbers(values: Any) -> TypeGuard[List[float]]:
    return isinstance(values, list) and all(map(_is_number, values))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f'{text[:77]}...'
