"""Checks that classes, annotation files and heads of a config agree, before a run starts."""

import json
import re
from typing import Any, Iterator, List, Mapping, Sequence, Tuple

from mmengine import fileio
from mmengine.logging import print_log
from torch import nn

from ...datasets.audit.coco import check_classes, read_categories
from .data import DataError

# Parts of a model that predict the classes of the data set.
HEAD = re.compile(
    r'(?:roi_head\.)?(?:bbox|mask|mask_iou|point|decode|auxiliary|panoptic)_head(?:\.\d+)?|head'
)
THING_HEAD = re.compile(r'.*(?:bbox|mask|mask_iou|point)_head')
# These predict boundaries, or the texts of a vocabulary.
OTHER_HEADS = {'STDCHead', 'SideAdapterCLIPHead'}


def check_names(dataset: Any) -> None:
    """Raise DataError unless the class names of a data set are those of its files, in their order.

    A COCO file numbers the labels by its categories, and folders of images by their names. Classes
    in another order would be trained well and then called by each other's names. The message has
    the names of both and the option to set.

    Args:
        dataset: data set, loaded or built with ``lazy_init``; its annotation file exists.
    """
    metainfo = getattr(dataset, 'metainfo', {})
    classes, name = metainfo.get('classes'), type(dataset).__name__
    if 'CLASSES' in metainfo:
        raise DataError(f'{name} reads metainfo.classes, not metainfo.CLASSES: write classes=(...)')
    if isinstance(classes, str):
        raise DataError(
            f'metainfo.classes of {name} is the text {classes!r}, neither a list of names nor a '
            f'file with one per line: one class is classes=({classes!r},)'
        )
    if not classes:
        return
    if numbered_by_file(type(dataset)):
        names = _category_names(dataset.ann_file, getattr(dataset, 'backend_args', None))
        for finding in check_classes([dict(name=each) for each in names], classes):
            shown = tuple(dict.fromkeys(each for each in names if isinstance(each, str)))
            subset = tuple(each for each in shown if each in classes)
            wanted = subset if {*classes} <= {*subset} else shown
            raise DataError(
                f'{dataset.ann_file}: {finding.what}. Set metainfo=dict(classes={_cut(wanted)}) in '
                'its data set'
            )
    elif len({*getattr(dataset, 'cat_ids', classes)}) != len(classes):
        raise DataError(
            f'{dataset.ann_file} has the categories {dataset.cat_ids} for the {len(classes)} '
            f'classes {_cut(tuple(classes))}: it must have each once'
        )
    folders = [*(getattr(dataset, 'folder_to_idx', None) or ())]
    if folders != [*classes] and sorted(folders) == sorted(classes):
        raise DataError(
            f'{name}: the folders number the labels in the order {_cut(tuple(folders))}, so '
            f'{_cut(tuple(classes))} would give them other names: set classes in this order'
        )


def numbered_by_file(kind: type) -> bool:
    """Return True if a data set numbers the categories of its file as MMDetection's CocoDataset."""
    for owner in kind.__mro__:
        if 'load_data_list' in vars(owner):
            return owner.__name__ == 'CocoDataset' and hasattr(kind, 'COCOAPI')
    return False


def _category_names(path: str, backend_args: Any) -> List[Any]:
    try:
        records = read_categories(fileio.get(path, backend_args))
    except (OSError, ValueError) as error:
        why = 'is no JSON' if isinstance(error, json.JSONDecodeError) else 'cannot be read'
        raise DataError(f'{path} {why}: {error}') from error
    return [record.get('name') for record in records if isinstance(record, Mapping)]


def _cut(names: Tuple[str, ...], limit: int = 20) -> str:
    return repr(names) if len(names) <= limit else f'{repr(names[:limit])[:-1]}, ...)'


def check_heads(model: nn.Module, metainfo: Mapping, where: str) -> None:
    """Compare ``num_classes`` of all heads with the number of classes of a data set.

    Heads for stuff, boundaries, identities of persons and vocabularies are not compared. A
    classifier may have more outputs than classes, which is logged.

    Args:
        model: the model, which may be on the meta device.
        metainfo: meta information of the data set; without classes nothing is compared.
        where: name of the data loader, for the message.

    Raises:
        DataError: a head has another number, or ``loss_decode`` of a segmentor another number of
            class weights; the message has the options to set.
    """
    classes = metainfo.get('classes')
    if not classes or isinstance(classes, str):
        return
    wrong = []
    for name, found in _numbers(model):
        things = metainfo.get('thing_classes') if THING_HEAD.fullmatch(name) else None
        number = len(things or classes)
        # A single output of a segmentor separates two classes by a sigmoid.
        if found == number or (found == 1 and number == 2 and name.startswith(('dec', 'aux'))):
            continue
        if name == 'head' and found > number:
            print_log(
                f'model.head has {found} outputs for the {number} classes of {where}', 'current'
            )
            continue
        wrong.append((f'model.{name}.num_classes', found, number))
    if wrong:
        options = ' and '.join(f'{option} is {found}' for option, found, _ in wrong)
        cure = ', '.join(f'{option}={number}' for option, _, number in wrong)
        raise DataError(
            f'{options}, but the data set of {where} has {len(classes)} classes '
            f'{_cut(tuple(classes), 5)}: set {cure}, or metainfo.classes of the data set'
        )
    for name, found in _numbers(model):
        head = model.get_submodule(name)
        number = getattr(head, 'out_channels', found)  # one with a sigmoid for two classes
        for option, weights in _class_weights(name, head):
            if len(weights) != number:
                raise DataError(
                    f'{option} has {len(weights)} weights, but the head has {number} outputs: '
                    f'give one for each, or set {option}=None'
                )


def _class_weights(name: str, head: nn.Module) -> Iterator[Tuple[str, Sequence[float]]]:
    """Yield option and class weights of each ``loss_decode`` of a segmentor's head that has any."""
    losses = getattr(head, 'loss_decode', ())
    several = isinstance(losses, (list, nn.ModuleList))
    for i, loss in enumerate(losses if several else [losses]):
        weights = getattr(loss, 'class_weight', None)
        if isinstance(weights, (list, tuple)):
            yield f'model.{name}.loss_decode{f".{i}" if several else ""}.class_weight', weights


def _numbers(model: nn.Module) -> Iterator[Tuple[str, int]]:
    """Yield the heads of a model that predict classes, with their number."""
    if hasattr(model, 'language_model'):
        return
    for name, module in model.named_modules():
        number = getattr(module, 'num_classes', None)
        if not HEAD.fullmatch(name) or type(number) is not int:
            continue
        kind = type(module).__name__
        if kind in OTHER_HEADS or 'RPN' in kind or getattr(module, 'class_agnostic', False):
            continue
        yield name, number
