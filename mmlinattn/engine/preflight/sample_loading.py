"""Checked loading of samples: errors name the file; masks that exhaust memory are an error."""

from typing import Any, Iterator, List, Optional, Tuple

import numpy as np
from mmcv.transforms import LoadAnnotations, LoadImageFromFile, TestTimeAug
from mmengine import fileio
from mmengine.dataset import BaseDataset
from torch import Tensor

from ...datasets.audit.coco import bad_mask_reason
from ...datasets.audit.images import exif_orientation, file_truncation_reason, truncation_reason
from ...datasets.file_backends import StoreError
from ...utils import outside_reason
from .data import DataError, Labels, folders_of


class CheckedLoading:
    """Wrapper of a loading transform of MMCV, MMDetection or MMSegmentation; errors name the image.

    pycocotools exhausts the memory if a mask outline has NaN or lies far outside the image.

    Args:
        load: the transform.
        folders: folders of the data set; files outside are not read. If empty, any file is read.

    Attributes:
        labels: labels that the model is trained with; others are an error.
        skipped: None, or one flag per image. If set, a failing image is flagged and skipped
            instead of raising an error.
    """

    labels = Labels()
    skipped: Optional[Tensor] = None

    def __init__(self, load: Any, folders: Tuple[str, ...] = ()) -> None:
        self.load = load
        self.folders = folders

    def __call__(self, results: dict) -> Optional[dict]:
        try:
            return self.loaded(results)
        except StoreError:  # an error of the store, not of the image
            raise
        except Exception as error:  # decoders raise any type of error
            if self.skipped is None:
                why = str(error) or type(error).__name__  # a MemoryError has no text
                raise DataError(f'{path_of(results)} cannot be loaded: {why}') from error
            self.skipped[results['sample_idx']] = 1
            return None

    def __getattr__(self, name: str) -> Any:
        if name == 'load':  # while a copy is made, before its attributes are set
            raise AttributeError(name)
        return getattr(self.load, name)

    def __repr__(self) -> str:
        return repr(self.load)

    def loaded(self, results: dict) -> dict:
        """Apply the transform. If images may be skipped, raise DataError for incomplete files."""
        if isinstance(self.load, LoadAnnotations):
            return self._loaded_annotations(results)
        self._check_folder(path_of(results), 'it')
        if not self.labels.of_pixels:
            _check_label(results.get('gt_label'), self.labels, 'its label')
        strict = self.skipped is not None
        if strict and 'video_path' not in results:
            what = _truncation_reason(results['img_path'], self.load.backend_args)
            if what:
                raise DataError(what)
        found = self.load(results)
        size: Any = results.get('height'), results.get('width')
        if found is not None and None not in size and size != found['img_shape']:
            if strict:
                raise DataError(f'has the size {found["img_shape"]}, its annotation says {size}')
            _check_orientation(results, size, self.load.backend_args)
        return found

    def _loaded_annotations(self, results: dict) -> dict:
        _check_instances(self.load, results, self.labels)
        path = results.get('seg_map_path')
        self._check_folder(path, f'its map {path}')
        found = self.load(results)
        if found is not None and found.get('gt_seg_map') is not None:
            _check_seg_map(found['gt_seg_map'], results.get('ori_shape'), self.labels, path)
        return found

    def _check_folder(self, path: Any, name: str) -> None:
        what = outside_reason(path, self.folders) if isinstance(path, str) else None
        if what:
            raise DataError(f'{name} {what}')


def path_of(results: dict) -> Any:
    """Return the image or video that a sample is loaded from."""
    return results.get('video_path', results.get('img_path'))


def _truncation_reason(path: str, backend_args: Optional[dict]) -> Optional[str]:
    if backend_args is None and '://' not in path:
        return file_truncation_reason(path)
    return truncation_reason(fileio.get(path, backend_args))


def check_loading(dataset: Any) -> None:
    """Wrap the loading transforms of a data set, and of those inside it, by CheckedLoading."""
    for part in base_datasets(dataset):
        for transforms in _step_lists(getattr(part, 'pipeline', None)):
            for i, load in enumerate(transforms):
                of_image = isinstance(load, (LoadImageFromFile, LoadAnnotations))
                if of_image or type(load).__name__ == 'LoadClip':
                    transforms[i] = CheckedLoading(load, folders_of(part))


def limit_labels(dataset: Any, labels: Labels) -> None:
    """Make guarded transforms (:func:`check_loading`) refuse labels that the model lacks."""
    for part in base_datasets(dataset):
        for guard in loading_checks(part):
            guard.labels = labels


def loading_checks(part: BaseDataset) -> List[CheckedLoading]:
    """Return the guarded transforms of a data set."""
    steps = [step for transforms in _step_lists(part.pipeline) for step in transforms]
    return [step for step in steps if isinstance(step, CheckedLoading)]


def _step_lists(pipeline: Any) -> Iterator[list]:
    """Yield the list of transforms of a pipeline, and those of the views that it makes."""
    transforms = getattr(pipeline, 'transforms', [])
    yield transforms
    for step in transforms:
        for view in step.subroutines if isinstance(step, TestTimeAug) else ():
            yield from _step_lists(view)


def base_datasets(dataset: Any) -> Iterator[BaseDataset]:
    """Yield MMEngine's data sets inside wrappers; other kinds of data sets yield nothing."""
    if isinstance(dataset, BaseDataset):
        yield dataset
        return
    for part in [*getattr(dataset, 'datasets', ()), getattr(dataset, 'dataset', None)]:
        if part is not None:
            yield from base_datasets(part)


def _check_instances(load: LoadAnnotations, results: dict, labels: Labels) -> None:
    size: Any = results.get('height'), results.get('width')
    for i, instance in enumerate(results.get('instances') or ()):
        box, mask, label = (instance.get(key) for key in ('bbox', 'mask', 'bbox_label'))
        if box is not None and not np.isfinite(np.asarray(box, float)).all():
            raise DataError(f'the box of instance {i} is {box}')
        if not labels.of_pixels:
            _check_label(label, labels, f'the label of instance {i}')
        if not mask and getattr(load, 'with_mask', False):
            raise DataError(f'instance {i} has no mask')
        if mask and None not in size:
            what = bad_mask_reason(mask, size, margin=max(size))
            if what:
                raise DataError(f'the mask of instance {i}: {what}')


def _check_seg_map(seg_map: np.ndarray, size: Any, labels: Labels, path: Any) -> None:
    if seg_map.ndim != 2:
        raise DataError(f'its map {path} has {seg_map.shape[-1]} channels, not one of labels')
    if size is not None and seg_map.shape != tuple(size):
        raise DataError(f'its map {path} has the size {seg_map.shape}, it has {tuple(size)} itself')
    if labels.of_pixels:
        largest = seg_map.max(where=seg_map != labels.ignored, initial=0)
        _check_label(largest, labels, f'the largest label of its map {path}')


def _check_label(label: Any, labels: Labels, name: str) -> None:
    if labels.number is None or not isinstance(label, (int, list, np.generic, np.ndarray)):
        return
    if not all(0 <= value < labels.number for value in np.ravel(label)):
        raise DataError(
            f'{name} is {label}, the labels of {labels.number} classes are 0 to {labels.number - 1}'
        )


def _check_orientation(results: dict, size: Tuple[int, int], backend_args: Any) -> None:
    """Raise DataError if loading has rotated an image by EXIF, unlike its annotation."""
    loaded, path = results['img_shape'], results['img_path']
    if loaded == size[::-1] and exif_orientation(fileio.get(path, backend_args)) != 1:
        raise DataError(
            f'its EXIF orientation turns it to {loaded} (height, width), its annotation is for '
            f"{size}: save it turned, or set color_type='color_ignore_orientation' to load it"
        )
