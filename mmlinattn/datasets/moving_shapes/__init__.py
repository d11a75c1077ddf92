"""Moving Shapes: a small synthetic set of videos whose classes only the order of frames tells.

A light shape goes twice around the centre of a dark picture by quarter turns, clockwise or
anticlockwise each time. It takes the same places in every class, so no single frame and no
unordered set of frames tells the class::

    python tools/dataset_converters/moving_shapes.py data/moving_shapes

The root contains::

    videos/{train,val}/*.mp4      train.txt, val.txt (FILE LABEL, as for MMAction2)
    moving_shapes.json
"""

from .draw import CLASSES, draw_clip
from .write import generate_videos

__all__ = ['CLASSES', 'draw_clip', 'generate_videos']
