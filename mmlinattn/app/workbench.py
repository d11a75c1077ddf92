"""Models of the page and the functions behind its controls, independent of gradio."""

import threading
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

import cv2
import numpy as np
import yaml
from PIL import Image, ImageOps
from torch import nn

from ..apis import Prediction, Predictor, load
from ..checkpoints import package_weights
from ..datasets.audit.images import MAX_MEGAPIXELS, TooManyPixels, check_pixels
from .explain import OPACITY, AttentionMap, Explanation, View, attention_map, draw_map, views_of
from .html import Table

MOST_CLASSES = 10  # rows of a classifier's table
SHOWN = 512  # approximate minimum of the longer side of a shown picture, in pixels
Files = Tuple[str, str]


def package_models() -> List[Files]:
    """Return config and checkpoint of the models that come with the package and can be built here.

    Raises:
        ModuleNotFoundError: no framework of any of them is installed.
    """
    needed = {}
    for name, weights in package_weights().items():  # a config needs its framework to be read
        entry = yaml.safe_load(Path(weights).with_name(f'{name}.yml').read_text())
        needed[name] = entry['Models'][0]['Metadata']['Framework']
    found = [(name, f'mmlinattn://{name}') for name in needed if find_spec(needed[name])]
    if not found:
        raise ModuleNotFoundError(
            f'no CONFIG CHECKPOINT is given, and the models of this package need one of '
            f'{", ".join(sorted({*needed.values()}))}'
        )
    return found


def model_names(files: Sequence[Files]) -> List[str]:
    """Return the config name of each model, with the checkpoint appended if two are equal."""
    names = [Path(config).stem for config, _ in files]
    return [
        name if names.count(name) == 1 else f'{name}, {checkpoint}'
        for name, (_, checkpoint) in zip(names, files)
    ]


def load_models(files: Sequence[Files], device: str = 'cpu') -> Dict[str, Predictor]:
    """Return predictors by the names of :func:`model_names`.

    Each predictor runs once, so that a broken model fails here and the first picture is not slower
    than the others.

    Raises:
        FileNotFoundError, ValueError, mmlinattn.checkpoints.CheckpointError: see
            :func:`mmlinattn.engine.config.load_config` and :class:`mmlinattn.apis.Predictor`.
    """
    models = {}
    for name, (config, checkpoint) in zip(model_names(files), files):
        predictor = load(config, checkpoint, device)
        predictor.predict(np.full((128, 128, 3), 127, np.uint8))
        models[name] = predictor
    return models


def read_image(path: Union[str, Path], max_megapixels: float = MAX_MEGAPIXELS) -> np.ndarray:
    """Return the pixels of an image file, (H, W, 3) uint8 RGB, rotated by its EXIF orientation.

    Raises:
        TooManyPixels: the image exceeds the limit; raised before decoding.
        OSError: Pillow cannot decode the file; the message names it.
    """
    name = Path(path).name
    try:
        with open(path, 'rb') as file:
            check_pixels(file, name, max_megapixels)
            file.seek(0)
            with Image.open(file) as image:
                return np.asarray(ImageOps.exif_transpose(image).convert('RGB'))
    except TooManyPixels:
        raise
    except Exception as error:  # decoders raise arbitrary exceptions on damaged files
        raise OSError(
            f'image {name} cannot be read ({type(error).__name__}): it is damaged, or of a format '
            'that Pillow does not know'
        ) from error


def enlargement(image: np.ndarray) -> int:
    """Return the integer scale at which an image (H, W, 3) is shown; small images are enlarged.

    Example:
        >>> enlargement(np.zeros((96, 128, 3))), enlargement(np.zeros((1000, 800, 3)))
        (4, 1)
    """
    return max(1, SHOWN // max(image.shape[:2]))


class Workbench:
    """Predictions and attention maps of several models, computed one at a time.

    Images are (H, W, 3), uint8, RGB; drawn pictures are :func:`enlargement` times larger. Calls
    from several threads are serialised, because MMEngine's scope is global to the process and a
    view hooks the layers of its model.

    Args:
        models: predictors by name; see :func:`load_models`.

    Raises:
        ValueError: ``models`` is empty.
    """

    def __init__(self, models: Dict[str, Predictor]) -> None:
        if not models:
            raise ValueError('models is empty: nothing to predict with')
        self.models = models
        self._views = {name: views_of(predictor.model) for name, predictor in models.items()}
        self._one_at_a_time = threading.Lock()
        self._last: Tuple[object, Optional[AttentionMap]] = (None, None)

    def views(self, name: str) -> List[str]:
        """Return the titles of the attention maps of a model."""
        return [view.title for view in self._views[name]]

    def heads(self, name: str, title: Optional[str]) -> int:
        """Return the number of heads of an attention map; 1 without a title."""
        return 1 if title is None else self._view(name, title).heads

    def predict(
        self, name: str, image: np.ndarray, min_score: float
    ) -> Tuple[np.ndarray, str, Table]:
        """Return the drawn prediction, a line with the time, and a table of objects or classes."""
        predictor, bgr = self.models[name], cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
        with self._one_at_a_time:
            prediction = predictor.predict(bgr, min_score=min_score)
            made = prediction.reconstruction
            drawn = prediction.plot(enlarge=enlargement(image if made is None else made))
            table = table_of(prediction)
        height, width = image.shape[:2]
        text = (
            f'**{1e3 * prediction.seconds:.0f} ms** on {predictor.device} for {width} x {height} '
            f'pixels, preprocessing to postprocessing · {predictor.task}'
        )
        return cv2.cvtColor(drawn, cv2.COLOR_BGR2RGB), text, table

    def explain(
        self,
        name: str,
        image: np.ndarray,
        title: str,
        pixel: Optional[Sequence[float]] = None,
        head: Optional[int] = None,
        opacity: float = OPACITY,
    ) -> Explanation:
        """Return the attention map with a title of :meth:`views`, for the query at a pixel.

        The default is the pixel in the middle. See :func:`mmlinattn.app.explain.explain`. The last
        map is kept, so that another head or opacity needs no prediction.

        Raises:
            ValueError: the title is unknown, or an error of ``explain``.
        """
        view, factor = self._view(name, title), enlargement(image)
        x, y = pixel or (image.shape[1] // 2, image.shape[0] // 2)
        bgr = cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
        key = (name, view, (x, y), image.shape, sha256(bgr.data).digest())
        with self._one_at_a_time:
            last, found = self._last
            if found is None or last != key:
                found = attention_map(self.models[name], bgr, view, (x, y), factor)
                self._last = (key, found)
            return draw_map(found, bgr, factor, head, opacity)

    def _view(self, name: str, title: str) -> View:
        for view in self._views[name]:
            if view.title == title:
                return view
        raise ValueError(f'model {name!r} has no layer {title!r}')

    def close(self) -> None:
        """End a running prediction at its next layer, wait for it, and block later predictions.

        Python would abort if it ended while another thread computes.
        """
        for predictor in self.models.values():
            for module in predictor.model.modules():
                module.register_forward_pre_hook(_refuse)
        with self._one_at_a_time:
            pass


def _refuse(module: nn.Module, inputs: tuple) -> None:
    raise RuntimeError('the page is closed')


def table_of(prediction: Prediction) -> Table:
    """Return a table of objects, best first, or of classes with their pixel share or score.

    That of a reconstruction is empty.
    """
    names = prediction.names
    if prediction.reconstruction is not None:
        return Table([], [], [])
    scores: Any = prediction.scores  # None for segmentors, where it is not read
    if prediction.segmentation is not None:
        heads, shares = ['class', '% of pixels'], np.bincount(prediction.segmentation.flatten())
        shares = 100 * shares / prediction.segmentation.size
        columns = [[round(float(shares[label]), 1) for label in prediction.labels]]
    elif prediction.boxes is None:
        heads, names, scores = ['class', 'score'], names[:MOST_CLASSES], scores[:MOST_CLASSES]
        columns = [[f'{score:.3f}' for score in scores]]
    else:
        heads, sides = ['class', 'score', 'corner, size'], prediction.boxes[:, 2:]
        sizes = np.concatenate([prediction.boxes[:, :2], sides - prediction.boxes[:, :2]], 1)
        columns = [
            [f'{score:.3f}' for score in scores],
            ['{:.0f} {:.0f}, {:.0f} x {:.0f}'.format(*size) for size in sizes],
        ]
    colors = [prediction.categories[label]['color'] for label in prediction.labels]
    rows = [list(row) for row in zip(names, *columns)]
    order = sorted(range(len(rows)), key=lambda i: -float(rows[i][1]))
    return Table(heads, [rows[i] for i in order], [colors[i] for i in order])
