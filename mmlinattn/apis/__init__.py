"""Inference on images, folders, videos and cameras."""

from .coco import coco_json
from .predictor import Prediction, Predictor
from .results import ResultsFile, lines_to_coco
from .sources import Frame, FrameError, Source, open_sources

__all__ = [
    'Frame',
    'FrameError',
    'Prediction',
    'Predictor',
    'ResultsFile',
    'Source',
    'coco_json',
    'lines_to_coco',
    'open_sources',
]
