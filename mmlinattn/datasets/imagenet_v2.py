"""ImageNet-V2 from its numbered folders."""

from typing import Any, List

from mmengine import fileio
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS

from ..utils.messages import log_warning

CLASSES, RELEASED = 1000, 10_000
IMAGES = ('.jpeg', '.jpg', '.png')
WHERE = 'see docs/datasets.md#imagenet-v2'


@DATASETS.register_module()
class ImageNetV2(BaseDataset):
    """ImageNet-V2 (Recht et al., "Do ImageNet Classifiers Generalize to ImageNet?", ICML 2019).

    Folder ``n`` has the images of class ``n`` of ImageNet-1K. MMPretrain's folder data sets number
    the folders in the order of their names, in which 10 comes before 2.

    Args:
        data_root: folder or URL of one of the three sets, with the folders ``0`` to ``999``.
        kwargs: options of MMEngine's ``BaseDataset``.

    Samples, before the pipeline:
        ``img_path``; ``gt_label`` in 0..999.

    Raises:
        ValueError: a folder is not named by a class, or none has images.
        FileNotFoundError: ``data_root`` does not exist.

    Example:
        >>> ImageNetV2('nowhere')
        Traceback (most recent call last):
        FileNotFoundError: nowhere does not exist; see docs/datasets.md#imagenet-v2
    """

    def __init__(self, data_root: str, **kwargs: Any) -> None:
        super().__init__(data_root=data_root, **kwargs)

    def load_data_list(self) -> List[dict]:
        root = self.data_root
        if not fileio.isdir(root):
            raise FileNotFoundError(f'{root} does not exist; {WHERE}')
        samples: List[dict] = []
        for name in fileio.list_dir_or_file(root, list_file=False):
            if not (name.isascii() and name.isdigit() and int(name) < CLASSES):
                raise ValueError(
                    f'{root} has the folder {name!r}, folders of ImageNet-V2 are classes from 0 to '
                    f'{CLASSES - 1}; {WHERE}'
                )
            folder = fileio.join_path(root, name)
            for file in sorted(fileio.list_dir_or_file(folder, list_dir=False)):
                if file.lower().endswith(IMAGES):
                    path = fileio.join_path(folder, file)
                    samples.append(dict(img_path=path, gt_label=int(name)))
        samples.sort(key=lambda sample: sample['gt_label'])
        if not samples:
            raise ValueError(f'{root} has no images in folders 0 to {CLASSES - 1}; {WHERE}')
        if len(samples) != RELEASED:
            log_warning(f'{root} has {len(samples)} images, each released set {RELEASED}')
        return samples
