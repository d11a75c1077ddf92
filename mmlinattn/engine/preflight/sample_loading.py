"""Checked loading of samples, the same before work, in training and in ``check-data``."""

import os.path as osp
from pathlib import Path
from typing import Any, Iterator, List, Optional, Sequence, Set, Tuple

import numpy as np
from mmcv.transforms import LoadAnnotations, LoadImageFromFile
from mmengine import fileio
from mmengine.dataset import BaseDataset

from ...datasets.audit.coco import Finding
from ...datasets.audit.images import exif_orientation, truncation_reason
from ...utils import outside_reason
from ...utils.messages import log_warning
from .data import DataError, Labels, first_files, folders_of

# Samples of each data set that are loaded before work, spread over all of them.
LOOKED_AT = 8


class CheckedLoading:
    """Loading transform whose errors name the file; what cannot be trained on is an error.

    Args:
        load: the transform, of any framework.
        labels: labels that the model is trained with.
        folders: folders of the data set; files outside are not read. If empty, any file is read.
    """

    def __init__(self, load: Any, labels: Labels, folders: Sequence[str] = ()) -> None:
        self.load = load
        self.labels = labels
        self.folders = folders

    def __call__(self, results: dict) -> Optional[dict]:
        loaded, found = self.loaded(results)
        for finding in found:
            if finding.fatal:
                raise DataError(f'{finding.where} {finding.what}')
        return loaded

    def loaded(self, results: dict) -> Tuple[Optional[dict], List[Finding]]:
        """Return what the transform loads, None if it fails, and the findings in it."""
        path: Any = path_of(results)
        for file in filter(None, (path, results.get('seg_map_path'))):
            outside = outside_reason(file, self.folders)
            if outside:
                return None, [Finding('outside', file, outside, True)]
        try:
            loaded = self.load(results)
        except Exception as error:  # decoders raise any type of error
            seg_map = 'img_shape' in results and results.get('seg_map_path')
            return None, [_unreadable(str(seg_map or path), error)]
        if loaded is None:
            return None, []
        is_image = isinstance(self.load, LoadImageFromFile)
        found = [*self._check_image(results, loaded, path)] if is_image else []
        if isinstance(self.load, LoadAnnotations) and loaded.get('gt_seg_map') is not None:
            found += self._check_seg_map(loaded['gt_seg_map'], loaded, path)
        return loaded, found

    def _check_image(self, results: dict, loaded: dict, path: Any) -> Iterator[Finding]:
        size, here = (results.get('height'), results.get('width')), loaded['img_shape'][:2]
        if None not in size and size != here:
            what = f'is {here[0]} high and {here[1]} wide, its annotation says {size}'
            data = fileio.get(path, self.load.backend_args) if size == here[::-1] else b''
            turned = exif_orientation(data) != 1
            if turned:
                what = f'{what}: its EXIF orientation turns it when loaded. Save it turned, or set '
                what += "color_type='color_ignore_orientation' to load it as its annotation says"
            yield Finding('orientation' if turned else 'size', path, what, turned)
        label, number = results.get('gt_label'), self.labels.number
        if label is None or number is None or self.labels.of_pixels:
            return
        if not all(0 <= value < number for value in np.ravel(label)):
            what = f'its label is {label}, the labels of {number} classes are 0 to {number - 1}'
            yield Finding('class', path, what, True)

    def _check_seg_map(self, seg_map: np.ndarray, loaded: dict, path: Any) -> Iterator[Finding]:
        where, size = str(loaded.get('seg_map_path')), loaded.get('ori_shape')
        if seg_map.ndim != 2:
            what = f'has {seg_map.shape[-1]} channels, a map of labels has one'
            yield Finding('mask', where, what, True)
        elif size is not None and seg_map.shape != tuple(size):
            what = f'has the size {seg_map.shape}, its image {path} has {tuple(size)} itself'
            yield Finding('mask', where, what, True)
        elif self.labels.of_pixels and self.labels.number is not None:
            number, is_trained = self.labels.number, seg_map != self.labels.ignored
            if seg_map.max(where=is_trained, initial=0) >= number:
                strange = sorted(labels_in(loaded, self.labels).difference(range(number)))
                what = f'has labels {strange[:5]}, known are 0 to {number - 1}'
                if strange == [number]:
                    what += '; add the class (num_classes, metainfo.classes), or, if 0 is no '
                    what += 'class, set reduce_zero_label=True'
                yield Finding('class', where, what, True)
            elif not is_trained.any():
                yield Finding('mask', where, 'has ignored pixels only, nothing is trained')


def _unreadable(path: str, error: Exception) -> Finding:
    """Return the finding for a file that cannot be loaded, with the reason that it shows."""
    why = str(error) or type(error).__name__  # a MemoryError has no text
    if '://' not in path:
        folder = osp.dirname(path)
        if not osp.exists(path):
            what = f'does not exist; {folder} has {first_files(folder)}'
            return Finding('unreadable', path, what, True)
        if osp.isfile(path):
            why = truncation_reason(Path(path).read_bytes()) or why
    return Finding('unreadable', path, f'cannot be loaded: {" ".join(why.split())}', True)


def path_of(results: dict) -> Any:
    """Return the image or video that a sample is loaded from."""
    return results.get('video_path', results.get('img_path'))


def labels_in(loaded: Optional[dict], labels: Labels) -> Set[int]:
    """Return the labels in the segmentation map of a loaded sample, without the ignored one."""
    seg_map = (loaded or {}).get('gt_seg_map')
    return set() if seg_map is None else {*np.unique(seg_map).tolist()} - {labels.ignored}


def base_datasets(dataset: Any) -> Iterator[BaseDataset]:
    """Yield MMEngine's data sets inside wrappers; other kinds of data sets yield nothing."""
    if isinstance(dataset, BaseDataset):
        yield dataset
        return
    for part in [*getattr(dataset, 'datasets', ()), getattr(dataset, 'dataset', None)]:
        if part is not None:
            yield from base_datasets(part)


def check_loading(dataset: BaseDataset, labels: Labels) -> List[CheckedLoading]:
    """Replace the loading transforms of a data set by CheckedLoading, and return these."""
    checked, lists = [], [getattr(dataset.pipeline, 'transforms', [])]
    for steps in lists:
        for i, step in enumerate(steps):
            if type(step).__name__.startswith('Load'):
                steps[i] = CheckedLoading(step, labels, folders_of(dataset))
                checked.append(steps[i])
            # The views of TestTimeAug have their own lists.
            lists += [view.transforms for view in getattr(step, 'subroutines', ())]
    return checked


def look_at(
    dataset: BaseDataset, index: int, steps: List[CheckedLoading]
) -> Tuple[Optional[dict], List[Finding]]:
    """Load a sample without its other transforms, and return it with the findings in it."""
    results: Optional[dict] = dataset.get_data_info(index)
    found: List[Finding] = []
    for step in steps:
        if results is not None:
            results, more = step.loaded(results)
            found += more
    return results, found


def check_samples(dataset: Any, labels: Labels) -> None:
    """Check the loading of a data set, or a wrapper of several, and load a few of its samples.

    Raises:
        DataError: a file does not exist or cannot be read, an image has another size than its
            annotation or map, or a label is none of the model's.
    """
    for part in base_datasets(dataset):
        steps, seen = check_loading(part, labels), set()
        last = len(part) - 1
        for i in sorted({last * k // (LOOKED_AT - 1) for k in range(LOOKED_AT if part else 0)}):
            loaded, found = look_at(part, i, steps)
            for finding in found:
                if finding.fatal or finding.kind == 'size':
                    raise DataError(f'{finding.where} {finding.what}')
            seen |= labels_in(loaded, labels)
        for finding in check_seen(seen, labels, type(part).__name__):
            log_warning(f'{finding.where} {finding.what}')


def check_seen(seen: Set[int], labels: Labels, where: str) -> Iterator[Finding]:
    """Yield a finding if the labels of all maps are 0 and the ignored one only."""
    if seen == {0} and labels.of_pixels:
        what = f'has segmentation maps with the labels 0 and {labels.ignored} only, and '
        what += f'{labels.ignored} is ignored (ignore_index): nothing but class 0 is trained. '
        yield Finding('class', where, f'{what}Write the labels of other classes as 1, 2, ...')
