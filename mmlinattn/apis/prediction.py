"""Prediction of one image: its numbers, its picture and its files."""

import io
import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import List, Optional, Sequence, Union

import cv2
import numpy as np
from mmengine.structures import BaseDataElement
from PIL import Image

from ..utils import atomic_write, check_writable
from ..visualization.predictions import draw_prediction
from .coco import coco_json, coco_record


@dataclass(frozen=True)
class Prediction:
    """Prediction of one image.

    Objects below ``min_score`` are left out of all that it returns, draws and saves, but not of
    ``sample``. Arrays are NumPy's; those that the model does not predict are None.

    Attributes:
        sample: data sample of the framework, on the CPU.
        seconds: time of preprocessing, model and postprocessing.
        image: (H, W, 3) uint8, BGR.
        name: name of the image; ``''`` if it is not from a file.
        categories: see :func:`.coco.coco_categories`, with colours.
        min_score: lowest score of objects.

    Example::

        prediction = mmlinattn.apis.load('my_config.py', 'epoch_8.pth')('a.jpg')
        for box, name, score in zip(prediction.boxes, prediction.names, prediction.scores):
            print(name, score, box)
        prediction.save('a_predicted.png')
    """

    sample: BaseDataElement
    seconds: float
    image: np.ndarray
    name: str
    categories: Sequence[dict]
    min_score: float = 0.3

    @property
    def classes(self) -> List[str]:
        """Names of all classes of the model."""
        return [category['name'] for category in self.categories]

    @property
    def boxes(self) -> Optional[np.ndarray]:
        """Boxes of a detector, (n, 4) float32: x1, y1, x2, y2 in pixels."""
        return self._of_objects('bboxes')

    @property
    def masks(self) -> Optional[np.ndarray]:
        """Masks of a detector that has them, (n, H, W) bool."""
        return self._of_objects('masks')

    @property
    def segmentation(self) -> Optional[np.ndarray]:
        """Class index of each pixel of a segmentor, (H, W) int64."""
        if 'pred_sem_seg' not in self.sample:
            return None
        return self.sample.pred_sem_seg.data[0].numpy().astype(np.int64)

    @property
    def labels(self) -> np.ndarray:
        """Class indices, int64: of the objects; of a classifier all, best first; of a segmentor
        those in the image, in ascending order."""
        if self.segmentation is not None:
            return np.unique(self.segmentation)
        labels = self._of_objects('labels')
        return np.argsort(-self.sample.pred_score.numpy()) if labels is None else labels

    @property
    def scores(self) -> Optional[np.ndarray]:
        """Scores of :attr:`labels`, float32 in 0..1; None for segmentors."""
        if 'pred_score' in self.sample:
            return self.sample.pred_score.numpy()[self.labels]
        return self._of_objects('scores')

    @property
    def names(self) -> List[str]:
        """Class names of :attr:`labels`."""
        return [self.classes[label] for label in self.labels]

    def plot(self) -> np.ndarray:
        """Return the image with the prediction drawn over it, (H, W, 3) uint8, BGR."""
        rgb = cv2.cvtColor(self.image, cv2.COLOR_BGR2RGB)
        palette = [category['color'] for category in self.categories]
        drawn = draw_prediction(rgb, self.sample, self.classes, palette, self.min_score)
        return cv2.cvtColor(drawn, cv2.COLOR_RGB2BGR)

    def save(self, path: Union[str, Path]) -> Path:
        """Write the picture of :meth:`plot`, or the prediction as COCO JSON; return the path.

        Args:
            path: file; the suffix decides: ``.json``, or an image format of OpenCV.

        Raises:
            ValueError: OpenCV does not write files with this suffix.
            OSError: the file cannot be written.
        """
        path = Path(path)
        if path.suffix == '.json':
            content = json.dumps(coco_json([self.record()], self.categories)).encode()
        else:
            is_written, encoded = False, np.empty(0)
            with suppress(cv2.error):  # of a suffix that it does not know, or for other pixels
                is_written, encoded = cv2.imencode(path.suffix, self.plot())
            if not is_written:
                raise ValueError(f'path must end with .json, .png, .jpg, ..., got {str(path)!r}')
            content = encoded.tobytes()
        return write_file(path, content)

    def record(self) -> dict:
        """Return the prediction for :func:`.coco.coco_json`."""
        shape = self.image.shape[:2]
        return coco_record(self.name, shape, self.sample, self.categories, self.min_score)

    def save_labels(self, path: Union[str, Path]) -> Path:
        """Write the segmentation as an indexed PNG: pixels are class indices, with the palette.

        Pillow and MMSegmentation read the indices; viewers show the colours.

        Raises:
            ValueError: the name does not end in .png, or the model is no segmentor or has more than
                256 classes.
            OSError: the file cannot be written.
        """
        if Path(path).suffix.lower() != '.png':
            raise ValueError(f'labels are saved as .png, got {path!s}')
        if self.segmentation is None or len(self.categories) > 256:
            raise ValueError('save_labels needs a segmentor of at most 256 classes')
        image = Image.fromarray(self.segmentation.astype(np.uint8)).convert('P')
        image.putpalette([x for category in self.categories for x in category['color']])
        content = io.BytesIO()
        image.save(content, 'png')
        return write_file(Path(path), content.getvalue())

    def _repr_png_(self) -> bytes:
        """Return the picture that notebooks show."""
        return cv2.imencode('.png', self.plot())[1].tobytes()

    def _of_objects(self, field: str) -> Optional[np.ndarray]:
        found = self.sample.get('pred_instances')
        if found is None or field not in found:
            return None
        return found[field][found.scores >= self.min_score].numpy()


def write_file(path: Path, content: bytes) -> Path:
    """Write a file by :func:`atomic_write`, with the folders above it, and return its path."""
    check_writable(path)
    with atomic_write(path) as temporary:
        temporary.write_bytes(content)
    return path
