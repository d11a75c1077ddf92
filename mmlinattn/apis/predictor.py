"""Inference with a model of MMDetection, MMSegmentation or MMPretrain."""

import time
from itertools import groupby, islice
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, List, Optional, Sequence, Tuple, Union

import cv2
import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import Compose, pseudo_collate
from mmengine.model import BaseModel
from mmengine.registry import DefaultScope
from mmengine.structures import BaseDataElement
from PIL import Image, ImageOps

from ..datasets.audit.images import too_dark
from ..deployment import is_exported, load_exported
from ..engine.config import load_config
from ..engine.model import class_names, load_model, metainfos, number_of_classes, quiet
from ..ops.common.checks import check_rate
from ..utils import check_integer
from .augmentation import augmentation, check_augmentable, merging_model
from .coco import category_ids, coco_categories
from .pipeline import Reader, as_bgr, packed_input, steps_of, without_loading
from .prediction import Prediction
from .sources import image_files

TASKS = {'mmdet': 'detection', 'mmseg': 'segmentation', 'mmpretrain': 'classification'}
HEADS = ('head', 'bbox_head', 'roi_head', 'panoptic_head', 'decode_head')
Picture = Union[str, Path, np.ndarray, Image.Image]


def load(
    config: Union[str, Path],
    weights: Union[str, Path],
    device: str = 'cpu',
    tta: bool = False,
    cfg_options: Optional[dict] = None,
) -> 'Predictor':
    """Return a predictor with the model of a config.

    Args:
        config: config file, or the name of one of this package.
        weights: checkpoint (a file or a URL) or exported file (``.onnx``).
        device, tta: see :class:`Predictor`.
        cfg_options: mapping of dotted names to values that override the config.

    Raises:
        FileNotFoundError, ValueError, mmlinattn.checkpoints.CheckpointError: see
            :func:`mmlinattn.engine.config.load_config` and :class:`Predictor`.

    Example::

        name = 'mask-rcnn_ravlt-nano-linear_nuclei'  # a model of the package
        predictor = mmlinattn.apis.load(name, f'mmlinattn://{name}')
        predictor('picture.jpg').save('predicted.png')
    """
    return Predictor(load_config(str(config), cfg_options), str(weights), device, tta)


class Predictor:
    """Predictor with the model of a config and the weights of a checkpoint or an exported file.

    Args:
        cfg: config from :func:`mmlinattn.engine.config.load_config`.
        weights: a checkpoint, whose loading executes no code, or an exported file.
        device: device of the model; an exported file runs on the CPU.
        tta: predict with test-time augmentation, see :func:`.augmentation.augmentation`.

    Attributes:
        task: ``'detection'``, ``'segmentation'`` or ``'classification'``.
        classes: class names.
        categories: COCO categories of the classes, with colours and the ids of the test data.
        model: the model in eval mode.
        read: returns the pixels of an image file, read as by the test pipeline.
        notes: sentences for the user, such as why category ids are counted from 1.

    Raises:
        ValueError: no config, one of another framework or without a test pipeline, a model without
            a head of boxes, labels or classes, or one that cannot be augmented.
        FileNotFoundError, mmlinattn.checkpoints.CheckpointError: see
            :func:`mmlinattn.engine.model.load_model`.
        mmlinattn.deployment.FileError: the exported file cannot be loaded or does not fit.
    """

    def __init__(self, cfg: Config, weights: str, device: str = 'cpu', tta: bool = False) -> None:
        if not isinstance(cfg, Config):
            raise ValueError(f'cfg must be a Config, got {cfg!r}: apis.load takes files and names')
        scope = cfg.get('default_scope')
        if scope not in TASKS:
            raise ValueError(f'default_scope of the config must be of {[*TASKS]}, got {scope!r}')
        exported = is_exported(weights)
        if tta and exported:
            raise ValueError(f'tta needs a checkpoint, got the exported file {weights!r}')
        self.task, self.cfg, self.device, self.tta = TASKS[scope], cfg, device, tta
        self.notes: List[str] = []
        steps = steps_of(cfg)
        with DefaultScope.overwrite_default_scope(scope):
            load: Callable[..., Tuple[BaseModel, dict]] = load_exported if exported else load_model
            self.model, meta = load(cfg, weights, device)
            if not exported and not any(hasattr(self.model, name) for name in HEADS):
                raise ValueError(
                    f'{type(self.model).__name__} has no head of boxes, labels or classes'
                )
            self.network: BaseModel = self.model
            if tta:
                check_augmentable(self.model)
                merging, steps, text = augmentation(cfg)
                self.network = merging_model(merging, self.model)
                self.notes.append(text)
            self.pipeline = Compose(without_loading(steps))
        self.read = Reader(steps, scope)
        self.classes = class_names(cfg, meta, number_of_classes(self.model))
        ids, reason = category_ids(cfg, self.classes)
        if reason and self.task == 'detection':
            self.notes.append(f'category ids are counted from 1: {reason}')
        palette = palette_of(meta, cfg, len(self.classes))
        self.categories = coco_categories(self.classes, palette, ids)

    def __call__(
        self, source: Union[Picture, Sequence[Picture]], min_score: float = 0.3, batch_size: int = 1
    ) -> Any:
        """Predict an image, a list of images or a folder.

        Args:
            source: path of an image or a folder (searched recursively); array (H, W, 3) uint8 in
                BGR, as ``cv2.imread`` returns it; PIL image; or a list of these. If the test
                pipeline loads other pixels, such as one channel, arrays are those pixels, and PIL
                images are refused.
            min_score: lowest score of objects, see :class:`.prediction.Prediction`.
            batch_size: number of images to read at once, see :meth:`predict_batch`.

        Returns:
            a :class:`.prediction.Prediction` for one image, else a list of them. :meth:`stream`
            keeps only one batch in memory.

        Raises:
            FileNotFoundError, ValueError: a source does not exist, or is no image; the message
                names it. See :func:`.sources.image_files`.
            ImageError: an image cannot be read.
        """
        found = list(self.stream(source, min_score, batch_size))
        is_folder = isinstance(source, (str, Path)) and Path(source).is_dir()
        return found if is_folder or isinstance(source, (list, tuple)) else found[0]

    def stream(
        self, source: Union[Picture, Sequence[Picture]], min_score: float = 0.3, batch_size: int = 1
    ) -> Iterator[Prediction]:
        """Yield the predictions of a source one by one; see :meth:`__call__`."""
        batch_size = check_integer('batch_size', batch_size)
        images = self._images(source)
        while batch := list(islice(images, batch_size)):
            pixels, names = zip(*batch)
            yield from self.predict_batch(pixels, names, min_score)

    def predict(self, image: np.ndarray, name: str = '', min_score: float = 0.3) -> Prediction:
        """Predict one image (H, W, 3), uint8, BGR.

        Raises:
            ValueError: another shape or dtype.
        """
        return self.predict_batch([image], [name], min_score)[0]

    @torch.no_grad()
    def predict_batch(
        self, images: Sequence[np.ndarray], names: Sequence[str], min_score: float = 0.3
    ) -> List[Prediction]:
        """Predict images; the results are those of :meth:`predict`.

        Successive images go through the model at once if they have one size after preprocessing,
        so nothing is padded. Views of test-time augmentation go image by image.

        Args:
            images: (H, W, 3) each, uint8, BGR, or pixels as the test pipeline loads them.
            names: names of the images.
            min_score: see :class:`.prediction.Prediction`.

        Returns:
            the predictions; ``seconds`` is the mean time.

        Raises:
            ValueError: an image has another shape or dtype, or ``min_score`` is not in 0..1.
        """
        check_rate('min_score', min_score)
        for image in images:
            if not isinstance(image, np.ndarray):
                raise ValueError(
                    f'image must be an array, got {type(image).__name__}: predictor(source) takes '
                    'paths and PIL images'
                )
            is_fit = image.ndim == 3 and image.shape[2] == 3 and image.dtype == np.uint8
            if not image.size or (self.read.is_plain and not is_fit):
                raise ValueError(
                    f'image must be (H, W, 3) uint8 in BGR, got {image.shape} {image.dtype}'
                    + ('; cv2.cvtColor converts grey images' if image.ndim == 2 else '')
                )
        start = time.perf_counter()
        samples: List[BaseDataElement] = []
        # PixelData warns because SegTTAModel sets labels without a channel.
        with DefaultScope.overwrite_default_scope(self.cfg.default_scope), quiet():
            inputs = enumerate(packed_input(self.pipeline, image) for image in images)
            key = (lambda one: one[0]) if self.tta else (lambda one: one[1]['inputs'].shape)
            for _, group in groupby(inputs, key):
                found = self.network.test_step(pseudo_collate([one for _, one in group]))
                samples += [sample.cpu() for sample in found]  # and wait for the GPU
        seconds = (time.perf_counter() - start) / max(len(images), 1)
        return [
            Prediction(sample, seconds, as_bgr(image), name, self.categories, min_score)
            for sample, image, name in zip(samples, images, names)
        ]

    def batch_of(self, image: np.ndarray) -> dict:
        """Return the input of the model's ``test_step`` for one image (H, W, 3), uint8, BGR."""
        with DefaultScope.overwrite_default_scope(self.cfg.default_scope):
            return pseudo_collate([packed_input(self.pipeline, image)])

    def _images(
        self, source: Union[Picture, Iterable[Picture]]
    ) -> Iterator[Tuple[np.ndarray, str]]:
        """Yield the pixels and the name of each image of a source."""
        if isinstance(source, (list, tuple)):
            for one in source:
                yield from self._images(one)
        elif isinstance(source, (str, Path)):
            for name, path in image_files([str(source)]).items():
                yield self.read(path), name
        elif isinstance(source, Image.Image) and self.read.is_bgr:
            yield _bgr(ImageOps.exif_transpose(source)), ''
        elif isinstance(source, np.ndarray):
            yield source, ''
        else:
            kinds = 'a path, an array, a PIL image' if self.read.is_bgr else 'a path, an array'
            raise ValueError(
                f'source must be {kinds} or a list of these, got {type(source).__name__}'
            )


def _bgr(image: Image.Image) -> np.ndarray:
    """Convert a PIL image to BGR uint8, as cv2.imread returns it; of 16 bits the upper 8 remain."""
    if image.mode.startswith(('I', 'F')):
        values = np.asarray(image)
        if image.mode == 'F' or values.min() < 0 or values.max() > 65535:
            what = f'a PIL image of mode {image.mode!r} must have values of 16 bits'
            raise ValueError(f'{what}: scale them to 0..255 and convert it to uint8')
        fault = too_dark(int(values.max()))
        if fault:
            raise ValueError(f'a PIL image of mode {image.mode!r}: {fault}')
        image = Image.fromarray((values >> 8).astype(np.uint8))
    return cv2.cvtColor(np.asarray(image.convert('RGB')), cv2.COLOR_RGB2BGR)


def palette_of(meta: dict, cfg: Config, number: int) -> Sequence[Tuple[int, ...]]:
    """Return the class colours of the checkpoint or the test data, else evenly spaced hues."""
    for metainfo in metainfos(cfg, meta):
        palette = metainfo.get('palette')
        if isinstance(palette, (list, tuple)) and len(palette) == number:
            return [tuple(map(int, color)) for color in palette]
    hues = np.full((1, max(number, 1), 3), 210 / 255, np.float32)  # 8 bits would have 180 hues
    hues[..., 0] = np.linspace(0, 360, hues.shape[1], endpoint=False)
    colors = 255 * cv2.cvtColor(hues, cv2.COLOR_HSV2RGB)[0]
    return [tuple(map(int, color)) for color in colors.round()]
