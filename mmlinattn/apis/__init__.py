"""Inference on images and folders."""

from .coco import coco_categories, coco_json
from .prediction import Prediction
from .predictor import Predictor, load
from .sources import ImageError, image_files, read_image

__all__ = [
    'ImageError', 'Prediction', 'Predictor', 'coco_categories', 'coco_json', 'image_files', 'load',
    'read_image',
]  # fmt: skip
