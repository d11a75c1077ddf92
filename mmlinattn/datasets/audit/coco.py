"""Checks of annotations in COCO format, record by record."""

import codecs
import json
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, Container, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from mmengine import fileio

# Pixels that a box or an outline may exceed its image by, because of rounding.
MARGIN = 1.0
# Kinds of findings in objects that MMDetection leaves out of training.
DROPPED = ('area', 'box without extent', 'mask without extent', 'unknown id')
LISTS = dict(images='image', categories='category', annotations='annotation')
Size = Tuple[int, int]  # height, width


class Finding(NamedTuple):
    """Problem found in a config or its data."""

    kind: str  # category of the problem, for counting
    where: str  # file, record or option
    what: str
    fatal: bool = False  # a run ends by it, or would give wrong results


def read_json(path: str, backend_args: Optional[dict] = None) -> Any:
    """Return the content of a JSON file; raise ValueError if it is none in UTF-8, or OSError."""
    data = fileio.get(path, backend_args)
    if data.startswith(codecs.BOM_UTF8):
        raise ValueError('it begins with a byte-order mark: save it as UTF-8 without one')
    try:
        return json.loads(data.decode())
    except ValueError as error:
        raise ValueError(f'it is no JSON: {error}') from error


def check_coco(
    content: Any, classes: Optional[Sequence[str]] = None, masks: bool = False,
    trained: bool = True, min_size: int = 0,
) -> Iterator[Finding]:  # fmt: skip
    """Yield the problems in the content of an annotation file, without reading the images.

    Args:
        content: content of the JSON file.
        classes: classes that the data set is read with; None for all classes of the file.
        masks: each object must have a mask; without, masks are not looked at.
        trained: the data are for training, not for scoring.
        min_size: MMDetection leaves images with a shorter side out of training.
    """
    tables: List[Dict[Any, Mapping]] = []
    for name, kind in LISTS.items():
        part = content.get(name) if isinstance(content, Mapping) else None
        if part is None and name == 'annotations' and not trained:
            part = []  # images of a test whose annotations are not published
        if not isinstance(part, list) or (name != 'annotations' and not part):
            what = f'must be a list with at least one record, got {_short(part)}'
            yield Finding('annotation', name, what, True)
            return
        tables.append((yield from _by_id(name, kind, part)))
    images, categories, annotations = tables
    names = {key: record.get('name') for key, record in categories.items()}
    for key, name in names.items():
        if not isinstance(name, str):
            yield Finding('annotation', f'category {key!r}', f'its name is {_short(name)}', True)
    read = {key for key, name in names.items() if classes is None or name in classes}
    sizes = yield from _check_images(images)
    small = [key for key, size in sizes.items() if 0 < min(size) < min_size]
    if trained and small:
        what = f'a side is below {min_size} pixels, as in {len(small)} of {len(sizes)} images: '
        what += 'training leaves them out (filter_cfg.min_size)'
        yield Finding('size', f'image {small[0]!r}', what)
    trained_classes, left_out = set(), []
    for key, record in annotations.items():
        reasons = []
        for kind, what, fatal in _problems(record, sizes, names, masks, trained):
            yield Finding(kind, f'annotation {key!r}', what, fatal)
            reasons += [f'{kind} ({what})'] if kind in DROPPED else []
        category = record.get('category_id')
        if _is_id(category) and category in names and category not in read:
            reasons.append('classes that are not read')
        if record.get('iscrowd') or record.get('ignore'):
            reasons.append('crowds (iscrowd=1)')
        left_out += reasons[:1]
        trained_classes.update([] if reasons or not _is_id(category) else [category])
    if not trained or not annotations:
        return
    if len(left_out) == len(annotations):
        counts = Counter(reason.partition(' (')[0] for reason in left_out)
        first = {reason.partition(' (')[0]: reason for reason in reversed(left_out)}
        what = ', '.join(f'{count} of {first[kind]}' for kind, count in counts.items())
        what = f'none of the {len(annotations)} objects can be trained: {what}'
        yield Finding('annotation', 'annotations', what, True)
    elif read - trained_classes:
        missing = [name for key, name in names.items() if key in read - trained_classes]
        yield Finding('class', 'annotations', f'no object of {_short(missing)} can be trained')


def _by_id(name: str, kind: str, records: list):
    """Yield records without an id, or with that of another one, and return all by their id."""
    known: Dict[Any, Mapping] = {}
    for i, record in enumerate(records):
        if not isinstance(record, Mapping) or not _is_id(record.get('id')):
            yield Finding('annotation', f'{name}[{i}]', f'has no id: {_short(record)}', True)
            continue
        if record['id'] in known:
            where = f'{kind} {record["id"]!r}'
            yield Finding('annotation', where, 'its id is there twice', kind == 'annotation')
        known[record['id']] = record
    return known


def _check_images(images: Dict[Any, Mapping]):
    """Yield the problems of images, and return their sizes by id, (0, 0) if unknown."""
    sizes: Dict[Any, Size] = {}
    named: Dict[str, Any] = {}
    for key, record in images.items():
        where = f'image {key!r}'
        name: Any = record.get('file_name')
        size: Any = record.get('height'), record.get('width')
        if not isinstance(name, str) or not name:
            yield Finding('annotation', where, f'file_name is {_short(name)}', True)
        elif named.setdefault(name, key) != key:
            what = f'has the same file_name as image {named[name]!r}, {_short(name)}'
            yield Finding('duplicate', where, what)
        is_size = all(type(side) is int and side > 0 for side in size)
        if not is_size:
            yield Finding('annotation', where, f'(height, width) is {_short(size)}', True)
        sizes[key] = size if is_size else (0, 0)
    return sizes


def _problems(
    record: Mapping, sizes: Dict[Any, Size], names: Dict[Any, Any], masks: bool, trained: bool
) -> Iterator[Tuple[str, str, bool]]:
    """Yield kind, text and fatality of the problems of an annotation."""
    image, category = record.get('image_id'), record.get('category_id')
    if record['id'] == 0:
        what = 'its id is 0, which COCO evaluation takes for "not matched": count from 1'
        yield 'annotation', what, False
    if type(record['id']) is str:
        yield 'annotation', 'its id is text: COCO evaluation needs a number', not trained
    if not _is_id(category) or category not in names:
        yield 'unknown id', _unknown('category', category, names), not _is_id(category)
    if not _is_id(image) or image not in sizes:
        yield 'unknown id', _unknown('image', image, sizes), not _is_id(image)
        return
    height, width = sizes[image]
    area: Any = record.get('area')
    box: Any = record.get('bbox')
    if not _is_number(area) or area <= 0:
        what = f'area is {_short(area)}: objects without area are not trained'
        yield 'area', what, not _is_number(area)
    crowd = record.get('iscrowd', 0 if trained else None)
    if crowd not in (0, 1):
        yield 'annotation', f'iscrowd is {_short(crowd)}, not 0 or 1', not trained
    if not (isinstance(box, list) and len(box) == 4 and all(map(_is_number, box))):
        yield 'annotation', f'bbox is {_short(box)}', True
    elif height:  # else the size is reported
        x, y, w, h = box
        if w < 1 or h < 1:
            what = f'bbox is {box} (x, y, width, height): sides below 1 pixel are not trained'
            yield 'box without extent', what, False
        elif min(x, y) < -MARGIN or x + w > width + MARGIN or y + h > height + MARGIN:
            is_off = x >= width or y >= height or x + w <= 0 or y + h <= 0
            kind = 'box without extent' if is_off else 'box outside'
            yield kind, f'bbox is {box}, its image {width} wide and {height} high', False
    mask = record.get('segmentation')
    if masks and not mask and not record.get('ignore'):
        what = 'has no segmentation, but masks are trained: for boxes alone use no mask head'
        yield 'mask', what, True
    elif masks and mask and height:
        kind, what = _mask_fault(mask, (height, width))
        if what:
            yield kind or 'mask', what, not (kind == 'mask outside' or (trained and kind))


def _mask_fault(mask: Any, size: Size) -> Tuple[str, str]:
    """Return the kind of finding, '' if it ends a training, and why a mask does not fit."""
    height, width = size
    if isinstance(mask, list):
        kind, what, is_empty = 'mask outside', '', True
        for outline in mask:
            is_flat = isinstance(outline, list) and {*map(type, outline)} <= {int, float}
            points = np.asarray(outline) if is_flat else np.zeros(())
            if points.dtype.kind not in 'if' or points.ndim != 1 or not np.isfinite(points).all():
                return '', f'an outline is {_short(outline)}'
            xs, ys = points[::2], points[1::2]
            most = max(xs.max(initial=0) - width, ys.max(initial=0) - height)
            beyond = max(most, -xs.min(initial=0), -ys.min(initial=0))
            outside = f'an outline reaches {beyond:g} pixels beyond its image'
            if beyond > max(size):  # pycocotools would exhaust the memory
                return '', outside
            if beyond > MARGIN:
                what = what or outside
            if len(points) < 6 or len(points) % 2:
                kind = 'mask'
                what = f'an outline must be x, y three times or more, got {_short(outline)}'
            else:
                is_empty = False
        return 'mask without extent' if is_empty else kind, what
    if not isinstance(mask, Mapping) or not isinstance(mask.get('counts'), (list, str, bytes)):
        return '', f'segmentation is {_short(mask)}'
    if not isinstance(mask.get('size'), (list, tuple)) or tuple(mask['size']) != (height, width):
        return '', f'its size is {_short(mask.get("size"))}, that of its image {[height, width]}'
    return ('', what) if (what := runs_fault(mask['counts'], height * width)) else ('mask', '')


def runs_fault(counts: Any, size: int) -> str:
    """Return why run lengths, a list or COCO's text of them, are none of ``size`` pixels, or ''.

    pycocotools leaves pixels that they lack as they were in memory. In the text a character has 5
    bits of a number. From the fourth one on it is the difference to the last number but one.

    Example:
        >>> runs_fault([2, 3, 1], 6), runs_fault('231', 6), runs_fault('23', 6)
        ('', '', "its run lengths do not sum to 6 pixels: '23'")
    """
    runs, text = (counts, b'') if isinstance(counts, list) else ([], counts)
    codes = [code - 48 for code in (text.encode() if isinstance(text, str) else text)]
    value = shift = 0
    for code in codes:
        value |= (code & 31) << shift
        shift += 5
        if not code & 32:  # the last character of the number
            value -= (code & 16) << shift - 4
            runs.append(value + (runs[-2] if len(runs) > 2 else 0))
            value = shift = 0
    is_text = all(0 <= code < 64 for code in codes) and not shift
    if is_text and all(type(run) is int and run >= 0 for run in runs) and sum(runs) == size:
        return ''
    return f'its run lengths do not sum to {size} pixels: {_short(counts)}'


def _unknown(kind: str, value: Any, known: Container) -> str:
    """Return that no record has an id, and the one that differs in its type alone."""
    what = f'no {kind} has the id {_short(value)}'
    other = str(value) if type(value) is int else int(value) if str(value).isdecimal() else None
    return f'{what}, one has {other!r}: write both as numbers' if other in known else what


def _is_id(value: Any) -> bool:
    return type(value) in (int, str)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f'{text[:77]}...'
