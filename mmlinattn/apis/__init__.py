"""Inference on images, folders, videos and cameras."""

from .categories import coco_categories
from .coco import coco_json
from .prediction import Prediction
from .predictor import Predictor, load
from .results import ResultsFile, lines_to_coco
from .sources import Frame, FrameError, Source, open_sources

__all__ = [
    'Frame',
    'FrameError',
    'Prediction',
    'Predictor',
    'ResultsFile',
    'Source',
    'coco_categories',
    'coco_json',
    'lines_to_coco',
    'load',
    'open_sources',
]
