"""Inference with a model of MMDetection, MMSegmentation or MMPretrain."""

import time
from contextlib import nullcontext
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, Callable, Iterator, List, Optional, Sequence, Tuple, Union

import cv2
import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.model import BaseModel
from mmengine.registry import DefaultScope
from mmengine.structures import BaseDataElement
from PIL import Image, ImageOps

from ..deployment import is_exported, load_exported
from ..engine.config import load_config
from ..engine.model import class_names, load_model, metainfos, number_of_classes, quiet
from ..utils import check_integer
from .augmentation import augmentation, check_augmentable, merging_model
from .categories import category_ids, coco_categories
from .packed import packed_unsupported_reason, predict_packed
from .pipeline import input_of, steps_of, without_loading
from .prediction import Prediction
from .sources import IMAGES, Frame, open_sources

TASKS = {'mmdet': 'detection', 'mmseg': 'segmentation', 'mmpretrain': 'classification'}
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
        weights: checkpoint (a file or a URL) or exported file (``.onnx``, ``.xml``, ``.pt2``).
        device, tta: see :class:`Predictor`.
        cfg_options: mapping of dotted names to values that override the config.

    Raises:
        FileNotFoundError, ValueError, mmlinattn.checkpoints.CheckpointError: see
            :func:`mmlinattn.engine.config.load_config` and :class:`Predictor`.

    Example::

        predictor = mmlinattn.apis.load('mask-rcnn_ravlt-nano_shapes', 'epoch_8.pth')
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
        task: ``'detection'``, ``'segmentation'``, ``'classification'`` or, of ViT-VQGAN,
            ``'reconstruction'``.
        classes: class names.
        categories: COCO categories of the classes, with colours and the ids of the test data.
        model: the model in eval mode.
        packed_unsupported_reason: why several images are predicted one by one, or None if at once.
        notes: sentences for the user, such as why category ids are counted from 1.

    Raises:
        ValueError: a config of another framework or without a test pipeline, or a model that
            cannot be augmented.
        FileNotFoundError, mmlinattn.checkpoints.CheckpointError: see
            :func:`mmlinattn.engine.model.load_model`.
        mmlinattn.deployment.FileError: the exported file cannot be loaded or does not fit.
    """

    def __init__(self, cfg: Config, weights: str, device: str = 'cpu', tta: bool = False) -> None:
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
            if hasattr(self.model, 'quantizer'):
                self.task = 'reconstruction'
            self.network: BaseModel = self.model
            if tta:
                check_augmentable(self.model)
                merging, steps, text = augmentation(cfg)
                self.network = merging_model(merging, self.model)
                self.notes.append(text)
            self.pipeline = Compose(without_loading(steps))
        self.packed_unsupported_reason = packed_unsupported_reason(self.model)
        if exported or tta:
            self.packed_unsupported_reason = (
                'an exported file takes one image' if exported else 'test-time augmentation'
            )
        self.classes = class_names(cfg, meta, number_of_classes(self.model))
        ids, reason = category_ids(cfg, self.classes)
        if reason and self.task == 'detection':
            self.notes.append(f'category ids are counted from 1: {reason}')
        palette = palette_of(meta, cfg, len(self.classes))
        self.categories = coco_categories(self.classes, palette, ids)

    def __call__(
        self,
        source: Union[Picture, Sequence[Picture]],
        min_score: float = 0.3,
        batch_size: int = 1,
    ) -> Any:
        """Predict an image, a list of images, a folder or a video.

        Args:
            source: path of an image, a folder (searched recursively) or a video; array (H, W, 3)
                uint8 in BGR, as ``cv2.imread`` returns it; PIL image; or a list of these.
            min_score: lowest score of objects, see :class:`.prediction.Prediction`.
            batch_size: number of images that are predicted at once, see :meth:`predict_batch`.

        Returns:
            a :class:`.prediction.Prediction` for one image, else a list of them. :meth:`stream`
            keeps only one in memory.

        Raises:
            FileNotFoundError, ValueError: a source does not exist, or is no image; the message
                names it. See :func:`.sources.open_sources`.
            FrameError: an image cannot be read.
        """
        found = list(self.stream(source, min_score, batch_size))
        return found[0] if _is_single(source) else found

    def stream(
        self,
        source: Union[Picture, Sequence[Picture]],
        min_score: float = 0.3,
        batch_size: int = 1,
    ) -> Iterator[Prediction]:
        """Yield the predictions of a source one by one; see :meth:`__call__`."""
        batch_size = check_integer('batch_size', batch_size)
        frames = iter(_frames(source))
        while group := list(islice(frames, batch_size)):
            # Those before an image that cannot be read are predicted before its error.
            readable = list(takewhile(lambda frame: frame.image is not None, group))
            images = [frame.read() for frame in readable]
            yield from self.predict_batch(images, [frame.name for frame in readable], min_score)
            for frame in group[len(readable) :]:
                frame.read()

    def predict(self, image: np.ndarray, name: str = '', min_score: float = 0.3) -> Prediction:
        """Predict one image (H, W, 3), uint8, BGR.

        Raises:
            ValueError: another shape or dtype.
        """
        return self.predict_batch([image], [name], min_score)[0]

    @torch.no_grad()
    def predict_batch(
        self,
        images: Sequence[np.ndarray],
        names: Optional[Sequence[str]] = None,
        min_score: float = 0.3,
    ) -> List[Prediction]:
        """Predict images of any sizes, at once if the model supports it, without padding.

        The results are those of :meth:`predict`. A model with ``packed_unsupported_reason``
        predicts them one by one.

        Args:
            images: (H, W, 3) each, uint8, BGR.
            names: names of the images.
            min_score: see :class:`.prediction.Prediction`.

        Returns:
            the predictions; ``seconds`` is the mean time.

        Raises:
            ValueError: an image has another shape or dtype.
        """
        for image in images:
            _check_image(image)
        start = time.perf_counter()
        if len(images) > 1 and self.packed_unsupported_reason is None:
            with DefaultScope.overwrite_default_scope(self.cfg.default_scope):
                samples = predict_packed(self.model, [self.batch_of(image) for image in images])
        else:
            samples = [self._sample_of(image) for image in images]
        seconds = (time.perf_counter() - start) / max(len(images), 1)
        return [
            Prediction(sample.cpu(), seconds, image, name, self.categories, min_score)
            for sample, image, name in zip(samples, images, names or [''] * len(images))
        ]

    def _sample_of(self, image: np.ndarray) -> BaseDataElement:
        scope = DefaultScope.overwrite_default_scope(self.cfg.default_scope)
        # PixelData warns because SegTTAModel sets labels without a channel.
        with scope, quiet() if self.tta else nullcontext():
            (sample,) = self.network.test_step(self.batch_of(image))
        return sample

    def batch_of(self, image: np.ndarray) -> dict:
        """Return the input of the model's ``test_step`` for one image (H, W, 3), uint8, BGR."""
        with DefaultScope.overwrite_default_scope(self.cfg.default_scope):
            return input_of(self.pipeline, image)


def _check_image(image: np.ndarray) -> None:
    if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:
        raise ValueError(
            f'image must be (H, W, 3) uint8 in BGR, got {image.shape} {image.dtype}; '
            'cv2.cvtColor converts grey images'
        )


def _is_single(source: object) -> bool:
    if isinstance(source, (str, Path)):
        return Path(source).is_file() and Path(source).suffix.lower() in IMAGES
    return not isinstance(source, (list, tuple))


def _frames(source: Union[Picture, Sequence[Picture]]) -> Iterator[Frame]:
    if isinstance(source, (list, tuple)):
        for one in source:
            yield from _frames(one)
    elif isinstance(source, (str, Path)):
        yield from open_sources([str(source)])[0]
    elif isinstance(source, Image.Image):
        rgb = ImageOps.exif_transpose(source).convert('RGB')
        yield Frame('', cv2.cvtColor(np.asarray(rgb), cv2.COLOR_RGB2BGR))
    elif isinstance(source, np.ndarray):
        yield Frame('', source)
    else:
        raise ValueError(
            'source must be a path, an array, a PIL image or a list of these, '
            f'got {type(source).__name__}'
        )


def palette_of(meta: dict, cfg: Config, number: int) -> Sequence[Tuple[int, ...]]:
    """Return the class colours of the checkpoint or the test data, else evenly spaced hues."""
    for metainfo in metainfos(cfg, meta):
        palette = metainfo.get('palette')
        if isinstance(palette, (list, tuple)) and len(palette) == number:
            return [tuple(map(int, color)) for color in palette]
    hues = np.zeros((1, max(number, 1), 3), np.uint8)
    hues[..., 0] = np.arange(max(number, 1)) * 180 // max(number, 1)
    hues[..., 1:] = 210
    return [tuple(map(int, color)) for color in cv2.cvtColor(hues, cv2.COLOR_HSV2RGB)[0]]
