"""Checks that an exported file belongs to the model and the data of a config."""

import logging
from typing import Sequence

from mmengine.config import Config
from mmengine.logging import print_log
from torch import nn

from ..engine.model import number_of_classes
from .capture import strides_of
from .deployable import exported_form
from .exported_file import ExportedFile, FileError


def check_model(file: ExportedFile, model: nn.Module, cfg: Config) -> None:
    """Raise FileError unless the metadata of an exported file match a model.

    Args:
        file: exported file.
        model: built from ``cfg.model``; its weights do not matter.
        cfg: config of the model; ``default_scope`` names the framework.

    Raises:
        FileError: task, number of classes, stride or prediction of masks differ.
        NotDeployable: the model cannot be exported.
    """
    metadata, form = file.metadata, exported_form(model, cfg, file.metadata.raw)
    _check_equal(file, model, 'task', metadata.task, form.task)
    _check_equal(file, model, 'number of classes', len(metadata.classes), number_of_classes(model))
    if metadata.task == 'detection' and not metadata.raw:
        has_masks = bool(getattr(model, 'with_mask', False))
        _check_equal(file, model, 'prediction of masks', 'masks' in metadata.outputs, has_masks)
    _check_equal(file, model, 'stride', metadata.stride, strides_of(model)[0])


def _check_equal(
    file: ExportedFile, model: nn.Module, name: str, found: object, expected: object
) -> None:
    if found != expected:
        raise FileError(
            f'{file.path} does not fit the config: its {name} is {found}, that of '
            f'{type(model).__name__} in the config is {expected}; give the config that it was '
            'exported with'
        )


def check_classes(file: ExportedFile, classes: Sequence[str]) -> None:
    """Compare the names of an exported file's classes with those of a data set.

    Different names cause only a warning, because the names of a data set may change.

    Raises:
        FileError: the order of the names differs, which would assign scores to wrong classes.
    """
    own, classes = file.metadata.classes, tuple(classes)
    unnamed = tuple(f'class {i}' for i in range(len(own)))
    if own in (classes, unnamed):
        return
    if sorted(own) == sorted(classes):
        place = next(i for i, (a, b) in enumerate(zip(own, classes)) if a != b)
        raise FileError(
            f'{file.path} has the classes of the data set in another order: class {place} is '
            f'{own[place]!r} in the file and {classes[place]!r} in the data set'
        )
    print_log(
        f'{file.path} names its classes {own}, the data set {classes}: scores compare them by '
        'number',
        'current',
        level=logging.WARNING,
    )
