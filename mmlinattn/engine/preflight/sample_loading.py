"""What cannot be loaded says which file it is, and what would take all memory is not decoded."""

from typing import Any, Iterator, Optional

import numpy as np
from mmcv.transforms import LoadAnnotations, LoadImageFromFile
from mmengine import fileio
from mmengine.dataset import BaseDataset
from torch import Tensor

from ...datasets.audit.coco import why_bad_mask
from ...datasets.audit.images import why_incomplete, why_incomplete_file
from ...datasets.file_backends import StoreError
from .data import DataError


class Guarded:
    """A loading transform of MMCV, MMDetection, MMSegmentation, with errors that name the image.

    pycocotools, asked for the mask of an outline with NaN in it or far away, takes all memory.

    Args:
        load: the transform.

    Attributes:
        skipped: where set, images that cannot be loaded are noted there instead (a number for each
            of the data set), of which nothing is left.
    """

    skipped: Optional[Tensor] = None

    def __init__(self, load: Any) -> None:
        self.load = load

    def __call__(self, results: dict) -> Optional[dict]:
        try:
            return self.loaded(results)
        except StoreError:  # says nothing of the image
            raise
        except Exception as error:  # decoders raise whatever they like
            if self.skipped is None:
                raise DataError(f'{results.get("img_path")} cannot be loaded: {error}') from error
            self.skipped[results['sample_idx']] = 1
            return None

    def __getattr__(self, name: str) -> Any:
        if name == 'load':  # of a copy that is still empty
            raise AttributeError(name)
        return getattr(self.load, name)

    def __repr__(self) -> str:
        return repr(self.load)

    def loaded(self, results: dict) -> dict:
        """What the transform gives; where images may be skipped only what is whole."""
        if isinstance(self.load, LoadAnnotations):
            _check_instances(self.load, results)
            return self.load(results)
        strict = self.skipped is not None
        if strict:
            what = _why_incomplete(results['img_path'], self.load.backend_args)
            if what:
                raise DataError(what)
        found = self.load(results)
        size = results.get('height'), results.get('width')
        if strict and found is not None and None not in size and size != found['img_shape']:
            raise DataError(f'has the size {found["img_shape"]}, its annotation says {size}')
        return found


def _why_incomplete(path: str, backend_args: Optional[dict]) -> Optional[str]:
    if backend_args is None and '://' not in path:
        return why_incomplete_file(path)
    return why_incomplete(fileio.get(path, backend_args))


def guard_loading(dataset: Any) -> None:
    """Make the loading transforms of a data set :class:`Guarded`, inside of wrappers too."""
    for part in base_datasets(dataset):
        transforms = getattr(getattr(part, 'pipeline', None), 'transforms', [])
        for i, load in enumerate(transforms):
            if isinstance(load, (LoadImageFromFile, LoadAnnotations)):
                transforms[i] = Guarded(load)


def base_datasets(dataset: Any) -> Iterator[BaseDataset]:
    """MMEngine's data sets inside of wrappers; none of a data set of another kind."""
    if isinstance(dataset, BaseDataset):
        yield dataset
        return
    for part in [*getattr(dataset, 'datasets', ()), getattr(dataset, 'dataset', None)]:
        if part is not None:
            yield from base_datasets(part)


def _check_instances(load: LoadAnnotations, results: dict) -> None:
    size = results.get('height'), results.get('width')
    for i, instance in enumerate(results.get('instances') or ()):
        box, mask = instance.get('bbox'), instance.get('mask')
        if box is not None and not np.isfinite(np.asarray(box, float)).all():
            raise DataError(f'the box of instance {i} is {box}')
        if not mask and getattr(load, 'with_mask', False):
            raise DataError(f'instance {i} has no mask')
        if mask and None not in size:
            what = why_bad_mask(mask, size, margin=max(size))
            if what:
                raise DataError(f'the mask of instance {i}: {what}')
