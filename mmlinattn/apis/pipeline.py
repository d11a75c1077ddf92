"""Test pipelines of configs, for images in memory too."""

import copy
from pathlib import Path
from typing import List, Optional, Sequence

import numpy as np
from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.registry import DefaultScope

from ..datasets.audit.images import reads_8_bits
from ..utils import type_name
from .sources import MAX_MEGAPIXELS, read_image

# Options of LoadImageFromFile with which it reads what `read_image` reads.
PLAIN = dict(color_type='color', imdecode_backend='cv2', to_float32=False)


def steps_of(cfg: Config) -> List[dict]:
    """Return the test pipeline of a config; raise ValueError if there is none."""
    return list(test_dataset(cfg)['pipeline'])


def loading_step(steps: Sequence[dict]) -> dict:
    """Return the step that reads the image: the first one, unless the data set holds pixels."""
    first = type_name(steps[0]) if steps else ''
    is_loading = first.startswith('Load') and first != 'LoadImageFromNDArray'
    step = dict(steps[0]) if is_loading else dict(type='LoadImageFromFile')
    remote = ('backend_args', 'file_client_args')  # predicted files are local
    return {key: value for key, value in step.items() if key not in remote}


class Reader:
    """Reader of image files, by the step that loads them in the test pipeline.

    ``is_plain`` is True if images are those of :func:`.sources.read_image`, ``is_bgr`` if they
    differ from those in dtype or decoder alone.
    """

    def __init__(self, steps: Sequence[dict], scope: Optional[str]) -> None:
        step = loading_step(steps)
        self.in_8_bits = reads_8_bits(type_name(step), step)
        self.is_plain = self.in_8_bits and {k: step.get(k, v) for k, v in PLAIN.items()} == PLAIN
        self.is_bgr = self.in_8_bits and step.get('color_type', 'color') == 'color'
        with DefaultScope.overwrite_default_scope(scope):
            self.load = Compose([step])

    def __call__(self, path: Path, max_megapixels: float = MAX_MEGAPIXELS) -> np.ndarray:
        """Return the pixels of an image; raise :class:`.sources.ImageError` if it has none."""
        load = None if self.is_plain else lambda path: self.load(dict(img_path=str(path)))['img']
        return read_image(path, max_megapixels, load, self.in_8_bits)


def as_bgr(pixels: np.ndarray) -> np.ndarray:
    """Return pixels (H, W) or (H, W, channels) of any type as a picture, (H, W, 3) uint8.

    Values outside of 0..255 are scaled. Of two channels the first is shown, of four and more three.

    Example:
        >>> as_bgr(np.array([[0, 65535]], np.uint16)).tolist()
        [[[0, 0, 0], [255, 255, 255]]]
    """
    if pixels.dtype != np.uint8:
        low, high = float(pixels.min()), float(pixels.max())
        if low < 0 or not 1 < high <= 255:
            pixels = (pixels.astype(np.float32) - low) * (255 / max(high - low, 1e-9))
        pixels = pixels.astype(np.uint8)
    pixels = pixels.reshape(*pixels.shape[:2], -1)
    return pixels[..., :3] if pixels.shape[2] >= 3 else pixels[..., :1].repeat(3, 2)


def without_loading(steps: Sequence[dict]) -> List[dict]:
    """Return a copy of a pipeline without the steps that load images or annotations."""
    steps = [step for step in copy.deepcopy(list(steps)) if not type_name(step).startswith('Load')]
    for step in steps:
        if type_name(step) == 'TestTimeAug':
            step['transforms'] = [*filter(None, map(without_loading, step['transforms']))]
    return steps


def packed_input(pipeline: Compose, image: np.ndarray) -> dict:
    """Return the output of a pipeline of :func:`without_loading` for the pixels of one image."""
    shape = image.shape[:2]
    known = dict(img=image, img_shape=shape, ori_shape=shape, img_path='', img_id=0, sample_idx=0)
    return pipeline(known)


def test_dataset(cfg: Config) -> dict:
    """Return the config of the test data that has the pipeline, inside any wrappers.

    No pipeline, or several data sets that are joined, raise ValueError.
    """
    dataset = (cfg.get('test_dataloader') or {}).get('dataset') or {}
    while 'pipeline' not in dataset and 'dataset' in dataset:
        dataset = dataset['dataset']
    if 'datasets' in dataset:
        raise ValueError(
            f'test_dataloader.dataset joins several data sets ({dataset["type"]}), and their '
            'pipelines may differ: set it to one of them'
        )
    if 'pipeline' not in dataset:
        raise ValueError('the config has no test_dataloader.dataset.pipeline')
    return dataset
