"""Checked loading of samples, the same before work, in training and in ``check-data``."""

import os
import os.path as osp
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Iterable, Iterator, List, Optional, Sequence, Set, Tuple

import mmcv
import numpy as np
from mmcv.transforms import LoadAnnotations, LoadImageFromFile
from mmengine import fileio
from mmengine.dataset import BaseDataset

from ...datasets.audit.coco import Finding
from ...datasets.audit.images import file_fault, reads_8_bits
from ...utils import outside_reason
from ...utils.messages import log_warning
from .data import DataError, Labels, first_files, folders_of, reader_of

# Samples of each data set that are loaded before work, spread over all of them.
LOOKED_AT = 8
# Transforms of others may add labels or change them.
PACKAGES = {'mmcv', 'mmdet', 'mmengine', 'mmlinattn', 'mmpretrain', 'mmseg', 'torchvision'}


class CheckedLoading:
    """Loading transform whose errors name the file; what cannot be trained on is an error.

    Files outside of ``folders``, those of the data set, are not read; without folders any file is.
    """

    def __init__(self, load: Any, labels: Labels, folders: Sequence[str] = ()) -> None:
        self.load = load
        self.labels = labels
        self.folders = folders
        self.in_8_bits = reads_8_bits(type(load).__name__, vars(load))

    def __call__(self, results: dict) -> Optional[dict]:
        loaded, found = self.loaded(results)
        for finding in found:
            if finding.fatal:
                raise DataError(f'{finding.where} {finding.what}')
        return loaded

    def loaded(self, results: dict) -> Tuple[Optional[dict], List[Finding]]:
        """Return what the transform loads, None if it fails, and the findings in it."""
        path: Any = results.get('video_path', results.get('img_path'))
        if outside := outside_file(results, self.folders):
            return None, [outside]
        try:
            loaded = self.load(results)
        except Exception as error:  # decoders raise any type of error
            seg_map = 'img_shape' in results and results.get('seg_map_path')
            is_known = bool(seg_map) or self.in_8_bits  # to Pillow
            return None, [_unreadable(str(seg_map or path), error, is_known)]
        if loaded is None:
            return None, []
        is_image = isinstance(self.load, LoadImageFromFile)
        found = [*self._check_size(results, loaded, path)] if is_image else []
        found += [*self._check_label(results, path)] if is_image or 'video_path' in results else []
        if isinstance(self.load, LoadAnnotations) and loaded.get('gt_seg_map') is not None:
            found += self._check_seg_map(loaded['gt_seg_map'], loaded, path)
        return loaded, found

    def _check_size(self, results: dict, loaded: dict, path: Any) -> Iterator[Finding]:
        size, here = (results.get('height'), results.get('width')), loaded['img_shape'][:2]
        if None not in size and size != here:
            what = f'is {here[0]} high and {here[1]} wide, its annotation says {size}'
            is_turned = size == here[::-1]
            if is_turned:
                what += ". Exchange them, or, if the file has an EXIF orientation, set color_type='"
                what += "color_ignore_orientation' to load it as its annotation says"
            yield Finding('orientation' if is_turned else 'size', path, what, is_turned)

    def _check_label(self, results: dict, path: Any) -> Iterator[Finding]:
        label, number = results.get('gt_label'), self.labels.number
        if label is None and self.labels.required and 'gt_score' not in results:
            what = 'has no gt_label, which training and scores need: give each image one '
            what += '(with_label=True); mmlinattn predict needs none'
            yield Finding('class', path, what, True)
        if label is None or number is None or self.labels.of_pixels:
            return
        labels = np.ravel(label)
        if labels.dtype.kind in 'USO':  # texts, None
            what = f'has the label {label!r}, labels are integers from 0 to {number - 1}'
            yield Finding('class', path, what, True)
        elif not all(0 <= value < number for value in labels):
            what = f'has the label {label}, the labels of {number} classes are 0 to {number - 1}'
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
                strange = np.unique(seg_map[is_trained & (seg_map >= number)]).tolist()
                what = f'has labels {strange[:5]}, known are 0 to {number - 1}'
                if strange == [number]:
                    what += '; add the class (num_classes, metainfo.classes), or, if 0 is no '
                    what += 'class, set reduce_zero_label=True'
                yield Finding('class', where, what, not self.labels.changed)
            elif not is_trained.any():
                yield Finding('mask', where, 'has ignored pixels only, nothing is trained')

    def wrapped_labels(self, loaded: dict) -> Iterator[Finding]:
        """Find labels above 255 in the file of a loaded map, which MMSegmentation wraps."""
        where, wraps = loaded.get('seg_map_path'), 'mmseg.datasets.transforms.loading'
        if reader_of(self.load, '_load_seg_map') != wraps or where is None:
            return
        data = fileio.get(where, self.load.backend_args)
        if data[1:4] == b'PNG' and data[24] <= 8:  # bits of a channel
            return
        values = np.unique(mmcv.imfrombytes(data, 'unchanged', backend=self.load.imdecode_backend))
        is_ignored = (values == 65535) & (self.labels.ignored == 255)  # it becomes 255
        strange = values[(values > 255) & ~is_ignored].tolist()
        if strange:
            what = f'has labels {strange[:5]}, which are read modulo 256 ({strange[0]} as '
            what += f'{int(strange[0]) % 256}): write a map of 8 bits with labels up to 255'
            yield Finding('class', where, what, True)


def outside_file(results: dict, folders: Sequence[str]) -> Optional[Finding]:
    """Return the finding of a sample's file outside of the folders of its data set, or None."""
    names = ('img_path', 'video_path', 'seg_map_path')
    for file in filter(None, (*map(results.get, names), *_linked_frames(results))):
        if reason := outside_reason(file, folders):
            return Finding('outside', file, reason, True)
    return None


def _linked_frames(results: dict) -> List[str]:
    """Return the frames of a folder of frames that are links."""
    template = results.get('frame_template')
    folder = results['video_path'] if template else ''
    if not template or '://' in folder or not osp.isdir(folder):
        return []
    names = (template.format(i + 1) for i in range(results['total_frames']))
    if osp.dirname(template):
        return list(filter(osp.islink, (osp.join(folder, name) for name in names)))
    links = {entry.name: entry.path for entry in os.scandir(folder) if entry.is_symlink()}
    return [links[name] for name in names if name in links] if links else []


def _unreadable(path: str, error: Exception, is_known: bool) -> Finding:
    """Return the finding for a file that cannot be loaded, with the reason that it shows."""
    why = str(error) or type(error).__name__  # a MemoryError has no text
    if '://' not in path:
        folder = osp.dirname(path)
        if not osp.exists(path):
            what = f'does not exist; {folder} has {first_files(folder)}'
            return Finding('unreadable', path, what, True)
        if is_known and osp.isfile(path):
            why = file_fault(Path(path).read_bytes()) or why
    return Finding('unreadable', path, f'cannot be loaded: {" ".join(why.split())}', True)


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
    packages = {type(step).__module__.partition('.')[0] for step in _with_nested(lists[0])}
    if packages - PACKAGES:
        labels = labels._replace(required=False, changed=True)
    for steps in lists:
        for i, step in enumerate(steps):
            if type(step).__name__.startswith('Load'):
                steps[i] = CheckedLoading(step, labels, folders_of(dataset))
                checked.append(steps[i])
            # The views of TestTimeAug have their own lists.
            lists += [view.transforms for view in getattr(step, 'subroutines', ())]
    return checked


def _with_nested(steps: Iterable[Any]) -> Iterator[Any]:
    """Yield transforms and those inside them, as of RandomChoice and RandomApply."""
    for step in steps:
        if not isinstance(step, dict):  # of Albu
            yield step
            nested = getattr(step, 'transforms', None) or ()
            yield from _with_nested(getattr(nested, 'transforms', nested))


def check_samples(dataset: Any, labels: Labels, trained: bool = True) -> None:
    """Raise DataError, or warn, if samples of a data set or a wrapper cannot be used as loaded."""
    parts = [*base_datasets(dataset)]
    for finding in sample_findings(parts, labels, trained, LOOKED_AT):
        if finding.fatal or finding.kind == 'size':
            raise DataError(f'{finding.where} {finding.what}')
        log_warning(f'{finding.where} {finding.what}')


def sample_findings(
    parts: Sequence[BaseDataset], labels: Labels, trained: bool, limit: Optional[int] = None
) -> Iterator[Finding]:
    """Load samples by :class:`CheckedLoading`, which stays in the sets; yield the findings in them.

    With a ``limit``, that many samples of each set are loaded, spread over all of it, and the video
    with the greatest label. If ``trained``, each class should occur.
    """
    tasks: List[Tuple[BaseDataset, List[CheckedLoading], int]] = []
    for part in parts:
        steps, size = check_loading(part, labels), min(limit or len(part), len(part))
        places = {(len(part) - 1) * k // max(size - 1, 1) for k in range(size)}
        listed = labels.number and size < len(part) and part.ann_file
        if listed and 'video_path' in part.get_data_info(0):
            given = [part.get_data_info(i)['gt_label'] for i in range(len(part))]
            places.add(given.index(max(given)))
        tasks += [(part, steps, place) for place in sorted(places)]

    def look(task: Tuple[BaseDataset, List[CheckedLoading], int]):
        part, steps, index = task
        results: Optional[dict] = part.get_data_info(index)
        path, found = (results or {}).get('img_path'), []
        for step in steps:
            if results is not None:
                results, more = step.loaded(results)
                found += [*step.wrapped_labels(results or {})] or more
        if isinstance(path, str) and results is not None:  # some decoders fill what is missing
            data = fileio.get(path, getattr(part, 'backend_args', None))
            why = file_fault(data, any(step.in_8_bits for step in steps))
            found += [Finding('file', path, why)] if why else []
        loaded = (results or {}).get('gt_seg_map' if labels.of_pixels else 'gt_label')
        return (None if loaded is None else {*np.unique(loaded).tolist()}), found

    seen, is_whole = [], True
    with ThreadPoolExecutor() as pool:
        for numbers, found in pool.map(look, tasks):
            seen += [] if numbers is None else [numbers]
            is_whole &= not any(finding.fatal for finding in found)
            yield from found
    if seen and is_whole and labels.number is not None:
        count = len(tasks) if len(tasks) < sum(map(len, parts)) else None
        yield from _check_seen(set().union(*seen), labels, parts[0], count, trained)


def _check_seen(
    seen: Set[int], labels: Labels, dataset: BaseDataset, count: Optional[int], trained: bool
) -> Iterator[Finding]:
    """Yield a finding if classes occur in none of ``count`` loaded samples, or of all (None)."""
    where, number = type(dataset).__name__, labels.number or 0
    has_ignored = labels.ignored in seen
    seen = seen - {labels.ignored}
    missing = [label for label in range(number) if label not in seen]
    if labels.of_pixels and not seen:
        what = f'has maps with the label {labels.ignored} only, which is ignored (ignore_index)'
        yield Finding('class', where, what, count is None)
    elif trained and missing:
        names = getattr(dataset, 'metainfo', {}).get('classes') or ()
        shown = [repr(names[i]) if i < len(names) else f'label {i}' for i in missing[:5]]
        what = f'has no {"pixel" if labels.of_pixels else "sample"} of {", ".join(shown)}'
        what += ', ...' if len(missing) > 5 else ''
        what += '' if count is None else f' in the {count} maps that were read'
        if labels.of_pixels:
            is_reduced = getattr(dataset, 'reduce_zero_label', False)
            if seen == {0} and has_ignored and not is_reduced:
                what += f': write other classes as 1, 2, ..., since {labels.ignored} is ignored'
            elif (number - 1 if is_reduced else 0) in missing:
                what += f': if its maps count classes from {0 if is_reduced else 1}, '
                what += f'set reduce_zero_label={not is_reduced}'
        # A few samples may lack rare classes; maps of one label, not 0 or 0 beside ignored pixels,
        # are a finding.
        is_constant = labels.of_pixels and len(seen) == 1 and (seen != {0} or has_ignored)
        if count is None or is_constant:
            yield Finding('class', where, what)
