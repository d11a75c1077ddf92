"""Checks that class names, annotation files, folders and heads of a config agree."""

import os
import re
from collections import Counter
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from torch import nn

from ...datasets.audit.coco import Finding
from ...utils import type_name
from .data import CUSTOM, reader_of

# Parts of a model that predict the classes of the data set.
HEAD = re.compile(
    r'(?:roi_head\.)?(?:bbox|mask|mask_iou|point|decode|auxiliary|panoptic)_head(?:\.\d+)?|head'
)
THING_HEAD = re.compile(r'.*(?:bbox|mask|mask_iou|point)_head')
# These predict boundaries, or the texts of a vocabulary.
OTHER_HEADS = {'STDCHead', 'SideAdapterCLIPHead'}


def is_coco(dataset: Any) -> bool:
    """Return True if a data set reads its file as MMDetection's CocoDataset does."""
    methods = ('load_data_list', 'parse_data_info')
    return all(reader_of(dataset, name) == 'mmdet.datasets.coco' for name in methods)


def class_folders(dataset: Any) -> List[str]:
    """Return the folders that number the classes of a set of MMPretrain, in their order."""
    if reader_of(dataset) != CUSTOM or dataset.ann_file or not dataset.with_label:
        return []
    folder = dataset.img_prefix
    if not os.path.isdir(folder):
        return []
    return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())


def listed_classes(dataset: Any, read: Callable) -> List[str]:
    """Return the classes that number the labels in a JSON file of MMEngine's format."""
    path, content = str(getattr(dataset, 'ann_file', '')), None
    if reader_of(dataset) == 'mmengine.dataset.base_dataset' and path.endswith('.json'):
        with suppress(OSError, ValueError):  # reading the data set says what is wrong
            content = read(path)
    metainfo = content.get('metainfo') if isinstance(content, dict) else None
    classes = metainfo.get('classes') if isinstance(metainfo, dict) else None
    return list(map(str, classes)) if isinstance(classes, list) else []


def check_listed(dataset: Any, listed: Sequence[str]) -> Iterator[Finding]:
    """Find the classes of :func:`listed_classes` in another order; other names are as good."""
    classes = getattr(dataset, 'metainfo', {}).get('classes') or ()
    classes = [] if isinstance(classes, str) else [*map(str, classes)]
    if sorted(listed) == sorted(classes) and [*listed] != classes:
        what = f'{_difference(listed, classes)} in metainfo.classes: the labels are numbered by '
        what += f'the classes of the file. Set metainfo=dict(classes={_cut(tuple(listed))})'
        yield Finding('class', dataset.ann_file, what, True)


def check_names(dataset: Any, categories: Sequence[Any]) -> Iterator[Finding]:
    """Compare the class names of a data set with its COCO categories or folders, in their order.

    These number the labels: classes in another order would be called by each other's names.
    """
    yield from _check_hidden(dataset)
    metainfo = getattr(dataset, 'metainfo', {})
    classes, name = metainfo.get('classes') or (), type(dataset).__name__
    if 'CLASSES' in metainfo:
        what = 'reads metainfo.classes, not metainfo.CLASSES: write classes=(...)'
        yield Finding('class', name, what, True)
    if isinstance(classes, str):
        what = f'is the text {classes!r}, neither a list of names nor a file with one per line: '
        what += f'one class is classes=({classes!r},)'
        yield Finding('class', f'metainfo.classes of {name}', what, True)
        return
    names = [record.get('name') for record in categories if isinstance(record, Mapping)]
    names = [name for name in names if name and isinstance(name, str)]
    # MMDetection numbers the categories whose names are classes, in the order of the file.
    ordered = [name for name in names if name in classes]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        what = f'the category {twice[0]!r} is there twice: keep one of its ids, in annotations too'
        yield Finding('class', dataset.ann_file, what, True)
    elif names and classes and ordered != [*classes]:
        shown = tuple(dict.fromkeys(ordered if {*ordered} == {*classes} else names))
        what = f'{_difference(ordered, classes)} in metainfo.classes: the labels are numbered by '
        what += f'the categories of the file. Set metainfo=dict(classes={_cut(shown)}) in all data '
        what += 'sets, or write the categories of this file in the order of the classes'
        yield Finding('class', dataset.ann_file, what, True)
    folders = class_folders(dataset)
    given, lower = [[str(name).casefold() for name in names] for names in (folders, classes)]
    if given != lower and sorted(given) == sorted(lower):
        what = f'{_difference(folders, classes)} in metainfo.classes: the labels are numbered by '
        what += 'the folders. '
        is_order = {*folders} == {*classes}
        cure = f'Set metainfo=dict(classes={_cut(tuple(folders))})' if is_order else 'Rename them'
        yield Finding('class', dataset.img_prefix, what + cure, True)


def _check_hidden(dataset: Any) -> Iterator[Finding]:
    """Find hidden folders, as ``.ipynb_checkpoints``, that would be read or be a class."""
    folder = (getattr(dataset, 'data_prefix', None) or {}).get('img_path')
    if not folder or dataset.ann_file:
        return
    suffixes = getattr(dataset, 'extensions', None) or [getattr(dataset, 'img_suffix', '')]
    suffixes = tuple(map(str.lower, suffixes))
    classes = [os.path.join(folder, name) for name in class_folders(dataset)]
    for parent, _, files in os.walk(folder):
        is_hidden = any(name.startswith('.') for name in Path(parent).relative_to(folder).parts)
        is_read = parent in classes or any(file.lower().endswith(suffixes) for file in files)
        if is_hidden and is_read:
            what = 'is a hidden folder whose images would be read: remove or rename it'
            yield Finding('hidden', parent, what, True)


def check_same_classes(lists: Dict[str, Tuple[str, ...]], are_folders: bool) -> Iterator[Finding]:
    """Compare the classes of data loaders and checkpoints with those of the first one."""
    (first, known), *others = lists.items()
    for place, names in others:
        # Folders number the labels; other lists may have other names for the same labels.
        if names != known and (are_folders or sorted(names) == sorted(known)):
            what = f'{_difference(known, names)} here: both need the same classes in the same '
            what += f'order as {first}, {_cut(known)}'
            yield Finding('class', place, what, True)


def check_heads(
    model: nn.Module, metainfo: Mapping, where: str, config: Optional[Mapping] = None
) -> Iterator[Finding]:
    """Compare ``num_classes`` and class weights of all heads with the classes of a data loader.

    One-hot labels, of Mixup and CutMix too, take ``num_classes`` from the data preprocessor.
    ``config`` is that of the model.
    """
    classes = metainfo.get('classes')
    if not classes or isinstance(classes, str):
        return
    wrong = []
    preprocessor: Any = getattr(model, 'data_preprocessor', None)
    is_one_hot = where == 'train_dataloader' and getattr(preprocessor, 'to_onehot', False)
    for name, head, found in _heads(model):
        things = _things(metainfo) if THING_HEAD.fullmatch(name) else None
        number = len(things or classes)
        losses = getattr(head, 'loss_decode', ())
        several = isinstance(losses, (list, nn.ModuleList))
        losses = losses if several else [losses]
        of_pixels = name.startswith(('dec', 'aux'))
        loss = getattr(head, 'loss_module', None)
        is_sigmoid = getattr(loss, 'use_sigmoid', 'MultiLabel' in type(head).__name__)
        is_sigmoid |= type(loss).__name__ == 'FocalLoss'
        if number == 1 and loss is not None and not is_sigmoid and where == 'train_dataloader':
            what = f'has one class, {classes[0]!r}, from which a classifier learns nothing: add '
            what += 'images of another class, or name the folder above those of the classes'
            yield Finding('class', where, what, True)
        # A single output of a segmentor separates two classes by a sigmoid.
        if of_pixels and number == 1 and found <= 2:
            what = f'model.{name} predicts two labels, 0 and 1, but the data set names one class: '
            what += f"set metainfo.classes=('background', {classes[0]!r})"
            if found == 1 and not any(getattr(loss, 'use_sigmoid', False) for loss in losses):
                what += f' and model.{name}.num_classes=2'
            if metainfo.get('reduce_zero_label'):  # it ignores the background
                what += ' and reduce_zero_label=False'
            yield Finding('class', where, what, True)
        elif found == number or (of_pixels and found == 1 and number == 2):
            outputs = getattr(head, 'out_channels', found)
            for i, loss in enumerate(losses):
                weights = getattr(loss, 'class_weight', None)
                if isinstance(weights, (list, tuple)) and len(weights) != outputs:
                    option = f'model.{name}.loss_decode{f".{i}" if several else ""}.class_weight'
                    what = f'has {len(weights)} weights, but the head has {outputs} outputs: '
                    what += f'give one for each, or set {option}=None'
                    yield Finding('class', option, what, True)
        elif name == 'head' and found > number:
            option = f'model.{name}.num_classes'
            cure = f': set {option}={number}' if where == 'train_dataloader' else ''
            what = f'is {found}, but {where} has {number} classes{cure}'
            yield Finding('class', option, what)
        elif not hasattr(head, 'num_things_classes'):
            wrong.append((f'model.{_written(config, name)}.num_classes', found, number))
        # A classifier may have more outputs than classes.
        labels = preprocessor.num_classes if name == 'head' and is_one_hot else None
        if labels not in (None, max(found, number)):  # None: samples may have scores
            place = 'model.' if config and config.get('data_preprocessor') else ''
            place += 'data_preprocessor.num_classes'
            wrong.append((place, labels, max(found, number)))
    wrong += _wrong_panoptic(model, metainfo)
    if wrong:
        wrong = [*dict.fromkeys(wrong)]
        options = ' and '.join(f'{option} is {found}' for option, found, _ in wrong)
        cure = ', '.join(f'{option}={number}' for option, _, number in wrong)
        what = f'{options}, but the data set has {len(classes)} classes {_cut(tuple(classes), 5)}: '
        what += f'set {cure}, or metainfo.classes of the data set'
        yield Finding('class', where, what, True)


def _things(metainfo: Mapping) -> Optional[Sequence[str]]:
    """Return the classes that are things, or None if a config names other classes alone.

    MMDetection then keeps the things and the stuff of COCO beside them.
    """
    things = metainfo.get('thing_classes')
    return things if things is not None and {*things} <= {*metainfo['classes']} else None


def _wrong_panoptic(model: nn.Module, metainfo: Mapping) -> Iterator[Tuple[str, int, int]]:
    """Yield options of heads that count things and stuff apart, what they are and should be."""
    things, options = _things(metainfo), ('num_things_classes', 'num_stuff_classes')
    number = len(metainfo['classes'])
    right = [number, 0] if things is None else [len(things), number - len(things)]
    for name in ('semantic_head', 'panoptic_head', 'panoptic_fusion_head'):
        found: list = [getattr(getattr(model, name, None), option, None) for option in options]
        if None in found or (things is None and sum(found) == right[0]):
            continue
        for option, given, number in zip(options, found, right):
            if given != number:
                yield f'model.{name}.{option}', given, number


def _written(config: Any, name: str) -> str:
    """Return the place of a module in a config; a cascade makes several heads from one dict."""
    found = []
    for part in name.split('.'):
        if not part.isdigit():
            config = config.get(part) if isinstance(config, Mapping) else None
        elif isinstance(config, Mapping):
            continue
        else:
            config = config[int(part)] if isinstance(config, (list, tuple)) else None
        found.append(part)
    return '.'.join(found)


def check_padding(model: nn.Module) -> Iterator[Finding]:
    """Compare the label of padded pixels with that which the heads of a segmentor ignore.

    A head that ignores one of its classes passes: its images may need no padding.
    """
    option = 'model.data_preprocessor.seg_pad_val'
    pad = getattr(getattr(model, 'data_preprocessor', None), 'seg_pad_val', None)
    for name, head, number in _heads(model):
        ignored = getattr(head, 'ignore_index', None)
        if pad is None or type(ignored) is not int or ignored in (pad, *range(number)):
            continue
        is_main = name.startswith('decode')
        cure = f'{option}={ignored}' if is_main else f'model.{name}.ignore_index={pad}'
        is_class = 0 <= pad < number
        effect = f'be trained as label {pad}' if is_class else 'end the training'
        what = f'is {pad}, but model.{name}.ignore_index is {ignored}: padded pixels would {effect}'
        # A negative label, such as torch's -100, ignores nothing; there may be no padding.
        yield Finding('class', option, f'{what}. Set {cure}', not is_class and ignored >= 0)
        return


def check_crop(model: nn.Module, steps: Sequence[dict]) -> Iterator[Finding]:
    """Compare the crops of a training pipeline with the size to which a segmentor pads images."""
    size: Any = getattr(getattr(model, 'data_preprocessor', None), 'size', None)
    resizes = ('RandomCrop', 'Resize', 'RandomResize', 'Pad')
    last = [step for step in steps if type_name(step) in resizes][-1:]
    crops: List[Any] = [step.get('crop_size') for step in last if type_name(step) == 'RandomCrop']
    if not crops or not all(isinstance(each, (list, tuple)) for each in (size, crops[-1])):
        return
    size, crop = tuple(size), tuple(crops[-1])
    if size != crop:
        effect = 'all images would be padded'
        if any(side < cropped for side, cropped in zip(size, crop)):
            effect = 'an image that is smaller than the crop would end the training'
        option = 'model.data_preprocessor.size'
        what = f'is {size}, but images are cropped to {crop}: {effect}. Set {option}={crop}'
        yield Finding('size', option, what)


def _heads(model: nn.Module) -> Iterator[Tuple[str, nn.Module, int]]:
    """Yield the heads of a model that predict classes, with their number."""
    if hasattr(model, 'language_model'):
        return
    for name, module in model.named_modules():
        number: Optional[int] = getattr(module, 'num_classes', None)
        kind = type(module).__name__
        if kind == 'CSRAClsHead':  # of MMPretrain, which keeps no number
            number = module.csra_heads[0].head.out_channels
        if not HEAD.fullmatch(name) or type(number) is not int or kind in OTHER_HEADS:
            continue
        if 'RPN' not in kind and not getattr(module, 'class_agnostic', False):
            yield name, module, number


def _difference(known: Sequence[str], names: Sequence[str]) -> str:
    """Return the first label with another name, and both names."""
    pairs = enumerate(zip_longest(known, names))
    label, (there, here) = next(each for each in pairs if each[1][0] != each[1][1])
    there, here = ('missing' if name is None else repr(name) for name in (there, here))
    return f'label {label} is {there}, but {here}'


def _cut(names: Tuple[str, ...], limit: int = 20) -> str:
    return repr(names) if len(names) <= limit else f'{repr(names[:limit])[:-1]}, ...)'
