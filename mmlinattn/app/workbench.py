"""Models of the page and the functions behind its controls, independent of gradio."""

import threading
from contextlib import contextmanager
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

import cv2
import numpy as np
from PIL import Image, ImageOps
from torch import nn

from ..apis import Prediction, Predictor, coco_json
from ..datasets.audit.images import MAX_MEGAPIXELS, TooManyPixels, check_pixels
from ..engine.config import load_config
from ..engine.runner.allocator import release_freed_memory
from .explain import Explanation, explain, views_of

LARGE = 1e6  # pixels of an image above which freed memory is returned to the system
SHOWN = 512  # approximate minimum of the longer side of a shown picture, in pixels
Files = Tuple[str, str]


class Table(NamedTuple):
    """Table with column headings and rows."""

    heads: List[str]
    rows: List[list]


def demo_models(folder: Path) -> List[Files]:
    """Return config and checkpoint of each model that ``make demo`` trained, sorted by name.

    Raises:
        FileNotFoundError: there is no trained model.
    """
    found = []
    for pointer in sorted(folder.glob('*/last_checkpoint')):
        # The pointer is an absolute path; the folder may have moved.
        checkpoint = pointer.parent / Path(pointer.read_text().strip()).name
        config = pointer.parent / f'{pointer.parent.name}.py'
        if checkpoint.is_file() and config.is_file():
            found.append((str(config), str(checkpoint)))
    if not found:
        raise FileNotFoundError(
            f'no CONFIG CHECKPOINT is given, and {str(folder)!r} has no trained model: '
            '`make demo` trains two'
        )
    return found


def load_models(files: Sequence[Files], device: str = 'cpu') -> Dict[str, Predictor]:
    """Return predictors by config name, with the checkpoint appended if two names are equal.

    Each predictor runs once, so that a broken model fails here and the first picture is not slower
    than the others.

    Raises:
        FileNotFoundError, ValueError, mmlinattn.checkpoints.CheckpointError: see
            :func:`mmlinattn.engine.config.load_config` and :class:`mmlinattn.apis.Predictor`.
    """
    names = [Path(config).stem for config, _ in files]
    models = {}
    for name, (config, checkpoint) in zip(names, files):
        predictor = Predictor(load_config(config), checkpoint, device)
        predictor(np.full((128, 128, 3), 127, np.uint8))
        models[name if names.count(name) == 1 else f'{name}, {checkpoint}'] = predictor
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

    def views(self, name: str) -> List[str]:
        """Return the titles of the attention maps of a model."""
        return [view.title for view in self._views[name]]

    def predict(
        self, name: str, image: np.ndarray, min_score: float
    ) -> Tuple[np.ndarray, str, Table]:
        """Return the drawn prediction, a line with the time, and a table of objects or classes."""
        predictor, bgr = self.models[name], cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
        with self._turn(bgr):
            prediction = predictor(bgr)
            drawn = predictor.draw(bgr, prediction, min_score, enlargement(image))
            table = table_of(predictor, prediction, image.shape[:2], min_score)
        height, width = image.shape[:2]
        device = next(predictor.model.parameters()).device
        text = (
            f'**{1e3 * prediction.seconds:.0f} ms** on {device} for {width} x {height} pixels, '
            f'preprocessing to postprocessing · {predictor.task}'
        )
        return cv2.cvtColor(drawn, cv2.COLOR_BGR2RGB), text, table

    def explain(
        self,
        name: str,
        image: np.ndarray,
        title: str,
        pixel: Optional[Tuple[float, float]] = None,
    ) -> Explanation:
        """Return the attention map with a title of :meth:`views`, for the query at a pixel.

        The default is the pixel in the middle. See :func:`mmlinattn.app.explain.explain`.

        Raises:
            ValueError: the title is unknown, or an error of ``explain``.
        """
        view = next((view for view in self._views[name] if view.title == title), None)
        if view is None:
            raise ValueError(f'model {name!r} has no layer {title!r}')
        pixel = pixel or (image.shape[1] // 2, image.shape[0] // 2)
        bgr = cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
        with self._turn(bgr):
            return explain(self.models[name], bgr, view, pixel, enlargement(image))

    def close(self) -> None:
        """End a running prediction at its next layer, wait for it, and block later predictions.

        Python would abort if it ended while another thread computes.
        """
        for predictor in self.models.values():
            for module in predictor.model.modules():
                module.register_forward_pre_hook(_refuse)
        with self._one_at_a_time:
            pass

    @contextmanager
    def _turn(self, image: np.ndarray) -> Iterator[None]:
        """Wait for other calls; after a large image, release freed memory in any case."""
        with self._one_at_a_time:
            try:
                yield
            finally:
                if image.shape[0] * image.shape[1] >= LARGE:
                    release_freed_memory()


def _refuse(module: nn.Module, inputs: tuple) -> None:
    raise RuntimeError('the page is closed')


def table_of(
    predictor: Predictor, prediction: Prediction, shape: Tuple[int, int], min_score: float
) -> Table:
    """Return a table of objects, best first, or of classes with their pixel share or score."""
    content = coco_json([('', shape, prediction.sample)], predictor.classes, min_score)
    found = content['annotations']
    names = [predictor.classes[one['category_id'] - 1] for one in found]
    if predictor.task == 'segmentation':
        pixels = shape[0] * shape[1]
        rows = [[name, round(100 * one['area'] / pixels, 1)] for name, one in zip(names, found)]
        return Table(['class', '% of pixels'], sorted(rows, key=lambda row: -row[1]))
    scores = [round(one['score'], 3) for one in found]
    if predictor.task == 'classification':
        return Table(['class', 'score'], [list(row) for row in zip(names, scores)])
    boxes = ['{:.0f} {:.0f}, {:.0f} x {:.0f}'.format(*one['bbox']) for one in found]
    rows = [list(row) for row in zip(names, scores, boxes)]
    return Table(['class', 'score', 'corner, size'], sorted(rows, key=lambda row: -row[1]))
