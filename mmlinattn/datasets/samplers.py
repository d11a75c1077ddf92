"""Sampling of images of many sizes for training on crops of one size."""

from typing import Any, Iterator, Optional

import torch
from mmengine.dataset import InfiniteSampler
from mmengine.registry import DATA_SAMPLERS


@DATA_SAMPLERS.register_module()
class AreaSampler(InfiniteSampler):
    """Draw images at random in proportion to their area, with replacement, without end.

    For trainings that count iterations. Crops of one size then cover all images alike.
    ``InfiniteSampler`` draws each image equally often, so that a pixel of a 1024x1024 image is seen
    a sixteenth as often as one of 256x256.

    Args:
        dataset: a data set whose data information has ``height`` and ``width``, as that of
            ``CocoDataset`` and :class:`InstanceMaps`.
        seed: seed of the draws; by default one that all processes share.

    Raises:
        ValueError: an image has no height or width.

    Example:
        >>> class Images(list):
        ...     get_data_info = list.__getitem__
        >>> images = Images([dict(height=256, width=256), dict(height=1024, width=1024)])
        >>> draws = iter(AreaSampler(images, seed=0))
        >>> sum(next(draws) for _ in range(1000)) > 900
        True
    """

    def __init__(self, dataset: Any, seed: Optional[int] = None) -> None:
        super().__init__(dataset, shuffle=True, seed=seed)
        infos = [dataset.get_data_info(i) for i in range(len(dataset))]
        for info in infos:
            if not info.get('height') or not info.get('width'):
                raise ValueError(
                    f'AreaSampler: {info.get("img_path")} has no height and width in the data '
                    "information of its data set: use sampler=dict(type='InfiniteSampler')"
                )
        self.areas = torch.tensor(
            [info['height'] * info['width'] for info in infos], dtype=torch.float64
        )

    def _infinite_indices(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed)
        while True:
            draws = torch.multinomial(self.areas, self.size, True, generator=generator)
            yield from draws.tolist()
