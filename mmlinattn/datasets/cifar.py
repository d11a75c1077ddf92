"""CIFAR-100 from its binary files."""

from typing import Any, List

import numpy as np
from mmengine import fileio
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS

from ..utils.messages import log_warning

SIDE = 32
# Bytes of a record: a coarse label, a fine label, and the red, green and blue planes of an image.
RECORD = 2 + 3 * SIDE * SIDE
FINE = 100
RELEASED = dict(train=50_000, test=10_000)
NAMES = 'fine_label_names.txt'
WHERE = 'see configs/ripple/README.md#data'


@DATASETS.register_module()
class CIFAR100Binary(BaseDataset):
    """CIFAR-100 (Krizhevsky, 2009), read from the unpacked ``cifar-100-binary.tar.gz``.

    MMPretrain's ``CIFAR100`` reads the archive of Python pickles. The binary files cannot run
    code. Images are BGR, like images loaded from files, as augmentations and predictions expect;
    set ``to_rgb=True`` in the preprocessor.

    Args:
        data_root: folder or URL with ``train.bin``, ``test.bin`` and ``fine_label_names.txt``.
        split: ``'train'`` or ``'test'``.
        kwargs: options of MMEngine's ``BaseDataset``. ``metainfo=dict(classes=...)`` overrides the
            names of the file.

    Samples, before the pipeline:
        ``img`` (32, 32, 3) uint8, BGR; ``gt_label`` in 0..99, the fine label.

    Raises:
        ValueError: unknown split, or a file has an incomplete record, a label out of range, or
            not 100 names.
        FileNotFoundError: a file does not exist.

    Example:
        >>> CIFAR100Binary('nowhere', split='val')
        Traceback (most recent call last):
        ValueError: split must be one of ('train', 'test'), got 'val'
    """

    def __init__(self, data_root: str, split: str = 'train', **kwargs: Any) -> None:
        if split not in RELEASED:
            raise ValueError(f'split must be one of {tuple(RELEASED)}, got {split!r}')
        self.split = split
        super().__init__(data_root=data_root, **kwargs)

    def load_data_list(self) -> List[dict]:
        path = fileio.join_path(self.data_root, f'{self.split}.bin')
        data = np.frombuffer(_content(path), np.uint8)
        if not len(data) or len(data) % RECORD:
            raise ValueError(
                f'{path} has {len(data)} bytes, which is no whole number of images of {RECORD}: '
                f'not the binary version of CIFAR-100, or not all of it; {WHERE}'
            )
        records = data.reshape(-1, RECORD)
        labels = records[:, 1]
        if labels.max() >= FINE:
            raise ValueError(f'{path} has labels above {FINE - 1}: not of CIFAR-100; {WHERE}')
        planes = records[:, 2:].reshape(-1, 3, SIDE, SIDE)
        images = np.ascontiguousarray(planes[:, ::-1].transpose(0, 2, 3, 1))  # [N, 32, 32, 3] BGR
        expected = RELEASED[self.split]
        if len(labels) != expected:
            log_warning(f'{path} has {len(labels)} images, the released file {expected}')
        if 'classes' not in self._metainfo:
            path = fileio.join_path(self.data_root, NAMES)
            names = tuple(_content(path).decode('ascii', errors='replace').split())
            if len(names) != FINE:
                raise ValueError(
                    f'{path} has {len(names)} names, CIFAR-100 has {FINE} classes; {WHERE}'
                )
            self._metainfo['classes'] = names
        return [dict(img=img, gt_label=int(label)) for img, label in zip(images, labels)]


def _content(path: str) -> bytes:
    try:
        return fileio.get(path)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise FileNotFoundError(f'{path} does not exist; {WHERE}') from error
