"""Predictions for images that belong to no data set."""

from .coco import coco_json
from .predictor import Prediction, Predictor
from .sources import Frame, FrameError, Source, open_sources

__all__ = ['Frame', 'FrameError', 'Prediction', 'Predictor', 'Source', 'coco_json', 'open_sources']
