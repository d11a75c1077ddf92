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
    """Compare what an exported file says about itself with a model.

    Args:
        file: the file.
        model: built from ``cfg.model``; its weights do not matter.
        cfg: its config; ``default_scope`` names the framework.

    Raises:
        FileError: another task, number of classes, stride, or masks in one of the two alone.
        NotDeployable: a model that has no exported form.
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

    Other names are a warning, as the names of a data set may change.

    Raises:
        FileError: the same names in another order, which would give each score to another class.
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
