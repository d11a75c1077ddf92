"""What is wrong with annotations in COCO's format, record by record."""

import math
from collections.abc import Mapping
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

# Pixels that a box or an outline may reach beyond its image: rounding.
MARGIN = 1.0
Size = Tuple[int, int]  # height, width


class Finding(NamedTuple):
    """Something wrong with a data set.

    Attributes:
        kind: of a few, to count.
        where: a file, or a record of one.
        what: in words.
    """

    kind: str
    where: str
    what: str


def check_coco(
    content: Any, classes: Optional[Sequence[str]] = None, masks: bool = False
) -> Iterator[Finding]:
    """Findings in annotations, without a look at the images.

    Args:
        content: what the JSON file holds.
        classes: those that the data set is read with; None for all that the file has.
        masks: whether each object must have one.

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
    known = yield from _check_categories(categories, classes)
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
            yield Finding('mask', where, 'has none, and masks are trained')
    if annotations and crowds == len(annotations):
        what = f'all {crowds} objects are crowds (iscrowd=1), which are neither trained nor scored'
        yield Finding('annotation', 'annotations', what)


def _check_categories(records: list, classes: Optional[Sequence[str]]):
    ids: Dict[Any, Any] = {}
    for i, record in enumerate(records):
        fine = isinstance(record, Mapping) and _is_id(record.get('id'))
        if not fine or not isinstance(record.get('name'), str):
            yield Finding('annotation', f'categories[{i}]', f'no id or name: {_short(record)}')
        elif record['id'] in ids:
            yield Finding('annotation', f'category {record["id"]!r}', 'its id is there twice')
        else:
            ids[record['id']] = record['name']
    for name in classes or ():
        if name not in ids.values():
            what = f'the data set is read with it, the file has {_short([*ids.values()])}'
            yield Finding('class', f'class {name!r}', what)
    # MMDetection numbers classes in the order of the file.
    ordered = [name for name in ids.values() if name in (classes or ())]
    if sorted(ordered) == sorted(classes or ()) and ordered != list(classes or ()):
        what = f'in the file come in another order, {_short(ordered)}, and get its numbers'
        yield Finding('class', f'the classes {_short(list(classes or ()))}', what)
    return set(ids)


def _check_images(records: list):
    sizes: Dict[Any, Size] = {}
    named: Dict[str, Any] = {}
    for i, record in enumerate(records):
        if not isinstance(record, Mapping) or not _is_id(record.get('id')):
            yield Finding('annotation', f'images[{i}]', f'has no id: {_short(record)}')
            continue
        where = f'image {record["id"]!r}'
        name, size = record.get('file_name'), (record.get('height'), record.get('width'))
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
        return  # found with its image
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
    what = why_bad_mask(record.get('segmentation'), size)
    if what:
        yield Finding('mask', where, what)


def why_bad_mask(mask: Any, size: Size, margin: float = MARGIN) -> Optional[str]:
    """Why a segmentation is not one of an image of this size, None if it is, or there is none.

    Args:
        mask: polygons, or run lengths, compressed or not.
        size: (height, width).
        margin: pixels that an outline may reach beyond.
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
    runs = counts if isinstance(counts, list) else run_lengths(counts)
    if not runs or not all(type(run) is int and run >= 0 for run in runs):
        return 'its run lengths are none'
    if sum(runs) != height * width:
        return f'its run lengths sum to {sum(runs)} pixels instead of {height * width}'
    return None


def run_lengths(counts: Any) -> Optional[List[int]]:
    """The numbers in COCO's compressed string; None where it is none.

    Six bits a character from '0' on, five of them a digit, the sixth set where more follow; from
    the fourth number on they are differences to the last but one.

    Example:
        >>> run_lengths('T18')
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


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _are_numbers(values: Any) -> bool:
    return isinstance(values, list) and all(map(_is_number, values))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f'{text[:77]}...'
