"""Images of a folder, without labels, for the distillation."""

import json
import math
import os
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

import numpy as np
from mmcv.transforms import BaseTransform
from mmengine.config import Config
from mmengine.dataset import BaseDataset, Compose
from mmengine.registry import DATASETS, TRANSFORMS, DefaultScope
from PIL import UnidentifiedImageError

from ..apis import sources
from ..datasets.audit.images import file_fault, image_size, reads_8_bits
from ..engine.preflight.data import DataError, built_dataset, check_data, folders_of
from ..engine.preflight.sample_loading import base_datasets
from ..utils import outside_reason, type_name

# Sizes of images, largest first, of which one each goes through the pipeline before work starts.
MOST_SIZES = 32


@DATASETS.register_module()
class UnlabelledImages(BaseDataset):
    """Images without labels.

    Args:
        ann_file: JSON file, a list of paths.
        pipeline: transforms; the first one loads ``img_path``.

    Other arguments are those of MMEngine's ``BaseDataset``.
    """

    def load_data_list(self) -> List[dict]:
        paths = json.loads(Path(self.ann_file).read_text(encoding='utf-8'))
        return [dict(img_path=path, img_id=i, seg_fields=[]) for i, path in enumerate(paths)]


@TRANSFORMS.register_module()
class RandomCropFlip(BaseTransform):
    """Random crop to a size and horizontal flip of an image, for images without labels.

    A smaller image is padded with the mean of its pixels, bottom and right.

    Args:
        crop_size: (H, W), or None to keep the size.

    Example:
        >>> results = dict(img=np.zeros((20, 30, 3), np.uint8))
        >>> RandomCropFlip((16, 40))(results)['img_shape']
        (16, 40)
    """

    def __init__(self, crop_size: Optional[Sequence[int]] = None) -> None:
        self.crop_size = crop_size

    def transform(self, results: dict) -> dict:
        image = results['img']
        if self.crop_size is not None:
            height, width = self.crop_size
            spare = [max(have - want, 0) for have, want in zip(image.shape, self.crop_size)]
            top, left = (np.random.randint(space + 1) for space in spare)
            crop = image[top : top + height, left : left + width]
            image = np.empty((height, width, *image.shape[2:]), image.dtype)
            image[:] = crop.mean((0, 1))
            image[: crop.shape[0], : crop.shape[1]] = crop
        if np.random.rand() < 0.5:
            image = image[:, ::-1]
        results['img'] = image.copy()  # torch takes no negative stride, not even of one column
        results['img_shape'] = image.shape[:2]
        return results


def images_below(folder: str) -> List[Path]:
    """Return the images below a folder, sorted; raise DataError if a link leads out of it."""
    if not os.path.isdir(folder):
        raise FileNotFoundError(f'--images {folder}: there is no such folder')
    found = sources.images_below(Path(folder))
    if not found:
        suffixes = ', '.join(sources.IMAGES)
        raise DataError(f'--images {folder}: the folder has no images ({suffixes})')
    for path in found:
        reason = outside_reason(str(path), [folder])
        if reason:
            raise DataError(f'--images {folder}: {path} cannot be read: {reason}')
    return found


def image_pipeline(cfg: Config, crop_size: Optional[Sequence[int]]) -> List[dict]:
    """Return the test pipeline of a config without annotations, with a random crop and flip."""
    from ..apis.pipeline import loading_step, steps_of, without_loading

    pipeline = steps_of(cfg)
    *steps, pack = without_loading(pipeline)
    augment = dict(type='RandomCropFlip', crop_size=crop_size)
    return [loading_step(pipeline), *steps, augment, pack]


def training_images(cfg: Config) -> List[Path]:
    """Return the images of a config's training data, without their labels.

    Raises:
        DataError: there are no training data, their images are no files of this machine, or a link
            leads out of their folders.
        FileNotFoundError: the folder or the annotations of the data do not exist.
    """
    cure = 'name a folder with --images DIR'
    if cfg.get('train_dataloader') is None:
        raise DataError(f'the config has no train_dataloader whose images could be used: {cure}')
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope')):
        check_data(cfg, 'train_dataloader')
        try:
            wrapped = built_dataset(cfg.train_dataloader.dataset)
        except DataError as error:
            raise DataError(f'train_dataloader: {error}') from error
    found: Dict[Path, None] = {}
    for dataset in base_datasets(wrapped):
        for i in range(len(dataset)):
            path = dataset.get_data_info(i).get('img_path')
            if not isinstance(path, str) or not os.path.isfile(path):
                raise DataError(
                    f'train_dataloader: sample {i} of {type(dataset).__name__} is no image file of '
                    f'this machine ({path}): {cure}'
                )
            reason = outside_reason(path, folders_of(dataset))
            if reason:
                raise DataError(f'train_dataloader: {path} cannot be read: {reason}')
            found[Path(path)] = None
    if not found:
        raise DataError(f'train_dataloader has no images: {cure}')
    return [*found]


def check_readable(
    paths: Sequence[Path], source: str, pipeline: Sequence[dict], padded: bool = False
) -> None:
    """Check that all images can be read and make batches: one size, or crops of one size.

    Pixels are read of one image of each size only, and of images that Pillow cannot read. If
    ``padded``, sizes may differ, since batches are padded and the padding does not count. Other
    images raise DataError.
    """
    *steps, augment, pack = pipeline
    crop_size = augment['crop_size']
    in_8_bits = reads_8_bits(type_name(steps[0]), steps[0])
    sizes: Dict[Tuple[int, ...], Path] = {}
    for path in paths:
        try:
            reason = file_fault(path.read_bytes(), in_8_bits)
            sizes.setdefault(image_size(path), path)
        except UnidentifiedImageError:  # its loader knows the size
            sizes[0, len(sizes)] = path
        except OSError as error:
            reason = str(error) or type(error).__name__
        if reason:
            raise DataError(f'{source}: {path} cannot be read: {reason}')
    transform = Compose([*steps, pack])
    seen: Dict[Tuple[int, ...], Path] = {}
    for size in sorted(sizes, key=math.prod, reverse=True)[:MOST_SIZES]:
        path = sizes[size]
        try:
            packed = transform(dict(img_path=str(path), img_id=0, seg_fields=[]))
        except Exception as error:  # steps raise arbitrary exceptions
            reason = f'{type(error).__name__}: {error}'
            raise DataError(f'{source}: the test pipeline fails on {path}: {reason}') from error
        seen.setdefault(tuple(packed['inputs'].shape[-2:]), path)
        if len(seen) == 2 and not padded and crop_size is None:
            (one, other), (first, second) = seen, seen.values()
            raise DataError(
                f'{source}: after the test pipeline {first.name} has {_text(one)} and '
                f'{second.name} {_text(other)} pixels, which make no batch: give --crop-size H W'
            )


def _text(size: Sequence[int]) -> str:
    return 'x'.join(map(str, size))
